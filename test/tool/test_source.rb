# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

class TestSource < Minitest::Test
  include ToolTest

  def cache = File.join(@top, "build/cache")

  # Nothing half-fetched or half-unpacked may stay behind.
  def assert_nothing_left
    left = Dir[File.join(@top, "build/**/*")].map { |f| f.delete_prefix(@top) }
    assert_empty(left.grep(/fetch\.|unpack\.|scratch\./))
  end

  def test_a_named_tarball
    assert_equal "#{@tarball}\n", tool!("fetch-source", "--source", @tarball)
  end

  def test_a_named_tarball_with_another_checksum
    other = make_tarball("3.4.4")
    refute_tool(/SHA-256 \h{64}, which upstream.pin does not list for 3.4.5; fetch it again/, "fetch-source",
                "--source", other)
  end

  def test_a_named_directory
    assert_equal "#{@dir}/ruby-3.4.5\n", tool!("fetch-source", "--source", "#{@dir}/ruby-3.4.5")
  end

  def test_a_named_directory_of_another_version
    refute_tool(/is CRuby 3.3.9, the patches are for 3.4.5; name/, "fetch-source", "--source",
                make_source("3.3.9"))
  end

  def test_a_named_directory_that_is_no_source
    refute_tool(/is not a CRuby source directory/, "fetch-source", "--source", @top)
  end

  def test_a_name_that_is_not_there
    refute_tool(/no such file or directory; name/, "fetch-source", "--source", "#{@dir}/none")
  end

  def test_the_cache_comes_before_the_network
    FileUtils.mkdir_p(cache)
    FileUtils.cp(@tarball, "#{cache}/debian.tar.gz")
    assert_equal "#{cache}/debian.tar.gz\n", tool!("fetch-source")
  end

  def test_a_cache_that_cannot_be_written_is_read
    FileUtils.mkdir_p("#{@dir}/media")
    FileUtils.cp(@tarball, "#{@dir}/media/release.tar.gz")
    FileUtils.chmod("a-w", "#{@dir}/media")
    assert_equal "#{@dir}/media/release.tar.gz\n", tool!("fetch-source", "--cache", "#{@dir}/media")
  end

  def test_a_wrong_tarball_in_the_cache_is_told_and_not_used
    write("build/cache/debian.tar.gz", "no tarball")
    _, err, status = tool("fetch-source", "--no-network")
    refute status.success?
    assert_match(/warning: .*debian.tar.gz has a wrong checksum and is not used; delete it/, err)
    assert_match(/error: no tarball of CRuby 3.4.5 in/, err)
  end

  def test_fetches_from_the_release_site
    pin(debian_path: "pool/none.tar.gz", release_url: "file://#{@tarball}",
        release_sha256: Digest::SHA256.file(@tarball).hexdigest)
    skip "needs curl" unless system("curl --version >/dev/null 2>&1")
    out = tool!("fetch-source", env: { "PATH" => path_without("apt-get") })
    assert_equal "#{cache}/release.tar.gz\n", out
    assert_nothing_left
  end

  def test_a_fetched_tarball_with_a_wrong_checksum_is_not_kept
    skip "needs curl" unless system("curl --version >/dev/null 2>&1")
    pin(release_url: "file://#{make_tarball("3.4.4")}")
    refute_tool(/fetched source of CRuby 3.4.5 has a wrong checksum; nothing was kept/, "fetch-source",
                env: { "PATH" => path_without("apt-get") })
    assert_empty Dir.children(cache)
  end

  def test_no_network
    refute_tool(/could not be fetched \(no network\?\); put debian.tar.gz or release.tar.gz into/,
                "fetch-source", env: { "PATH" => path_without("apt-get") })
    assert_empty Dir.children(cache)
  end

  def test_nothing_to_fetch_with
    refute_tool(/could not be fetched \(curl or wget is missing/, "fetch-source",
                env: { "PATH" => path_without("apt-get", "curl", "wget") })
    assert_empty Dir.children(cache)
  end

  def test_no_space
    pin(unpacked_kb: 10**12)
    refute_tool(/not enough space in .*MB needed; make room there/, "unpack-source", "#{@dir}/out",
                "--source", @tarball)
    refute File.exist?("#{@dir}/out")
  end

  def test_unpacks_a_tarball_and_a_directory_whole
    [@tarball, "#{@dir}/ruby-3.4.5"].each_with_index do |source, i|
      tool!("unpack-source", "#{@dir}/out#{i}", "--source", source)
      assert_equal 20, File.readlines("#{@dir}/out#{i}/gc.c").size
    end
    assert_empty Dir["#{@dir}/unpack.*"]
  end

  def test_a_truncated_tarball_leaves_nothing
    File.truncate(@tarball, File.size(@tarball) / 2)
    pin
    refute_tool(/could not be unpacked/, "unpack-source", "#{@dir}/out", "--source", @tarball)
    refute File.exist?("#{@dir}/out")
    assert_empty Dir["#{@dir}/unpack.*"]
  end

  def test_does_not_overwrite
    refute_tool(/is there already; remove it first/, "unpack-source", @dir)
  end

  def test_what_is_of_the_pinned_version_stays_and_what_is_not_goes
    renew = -> { tool!("unpack-source", "--renew", "#{@dir}/out", "--source", @tarball) }
    renew.call
    write("#{@dir}/out/mine", "")
    renew.call
    assert_path_exists "#{@dir}/out/mine"
    @tarball = make_tarball("3.4.6")
    pin(version: "3.4.6")
    renew.call
    refute_path_exists "#{@dir}/out/mine"
    assert_match(/TEENY 6/, File.read("#{@dir}/out/version.h"))
  end

  # A PATH with links to all commands but some.
  def path_without(*names)
    bin = File.join(@dir, "bin")
    FileUtils.mkdir_p(bin)
    ENV["PATH"].split(":").reverse_each do |dir|
      Dir.glob("#{dir}/*").each { |f| FileUtils.ln_sf(f, bin) unless names.include?(File.basename(f)) }
    end
    bin
  end
end
