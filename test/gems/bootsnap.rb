# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
require "bootsnap"
require "tmpdir"
require "rbconfig"

class TestBootsnap < GemTest
  extension(%r{bootsnap/bootsnap\.so\z})

  def setup
    @dir = File.realpath(Dir.mktmpdir("bootsnap"))
    20.times do |i|
      value = "[#{i}, 'text é #{i}', :sym, { a: 1.5 }]"
      File.write("#{@dir}/part#{i}.rb", "module Part#{i}\n  def self.value = #{value}\nend\n")
    end
    File.write("#{@dir}/data.yml", "a: [1, 2.5, é]\nb: {c: null, d: 2001-01-01}\n:sym: x\n")
  end

  def teardown = FileUtils.rm_rf(@dir)

  # Runs +script+ in a process of its own that has set up Bootsnap; gives its output.
  def boot(script, cache: "#{@dir}/cache")
    setup = "gem 'bootsnap', #{ENV.fetch("COW_GEM_VERSION").dump}\n" \
            "require 'bootsnap'; require 'yaml'; require 'date'\n" \
            "Bootsnap.setup(cache_dir: #{cache.dump}, load_path_cache: true, compile_cache_iseq: true, " \
            "compile_cache_yaml: true, ignore_directories: [])\n" \
            "$LOAD_PATH.unshift(#{@dir.dump})\n"
    output = IO.popen([RbConfig.ruby, "-e", setup + script, { err: %i[child out] }], &:read)
    assert $?.success?, output
    output
  end

  LOAD_ALL = <<~'RUBY'
    20.times { |i| require "part#{i}" }
    p (0...20).map { |i| Object.const_get("Part#{i}").value }
    p YAML.load_file("#{$LOAD_PATH.first}/data.yml", permitted_classes: [Date, Symbol])
  RUBY

  def test_the_second_boot_is_like_the_first
    plain = boot(LOAD_ALL)
    assert_operator Dir["#{@dir}/cache/**/*"].count { |f| File.file?(f) }, :>, 20, "files in the cache"
    assert_equal plain, boot(LOAD_ALL)
  end

  def test_the_second_boot_finds_all_files_in_the_cache
    boot(LOAD_ALL)
    count = "->(event, path) { events[event] += 1 if path.include?('/part') }"
    counted = "events = Hash.new(0)\nBootsnap.instrumentation = #{count}\n#{LOAD_ALL}\np events"
    assert_match(/hit[^\d]+20/, boot(counted))
  end

  def test_a_changed_file_is_compiled_anew
    boot(LOAD_ALL)
    File.write("#{@dir}/part3.rb", "module Part3\n  def self.value = :changed\nend\n")
    File.utime(Time.now + 5, Time.now + 5, "#{@dir}/part3.rb")
    assert_match(/:changed/, boot(LOAD_ALL))
  end

  def test_a_broken_cache_and_a_broken_file
    expected = boot(LOAD_ALL)
    files = Dir["#{@dir}/cache/**/*"].select { |f| File.file?(f) }
    files.each_with_index { |f, i| File.write(f, i.even? ? "" : "x" * 100) }
    assert_equal expected, boot(LOAD_ALL)
    File.write("#{@dir}/broken.rb", "def (")
    assert_match(/SyntaxError/, boot("begin; require 'broken'; rescue SyntaxError => e; p e.class; end"))
  end

  def test_under_stress_and_compaction
    expected = boot(LOAD_ALL)
    stressed = LOAD_ALL.sub("20.times { |i|", "GC.auto_compact = true; 20.times { |i| GC.stress = i < 3;")
    assert_equal expected, boot(stressed)
    move = "GC.verify_compaction_references(expand_heap: true, toward: :empty)"
    assert_equal expected, boot(LOAD_ALL.sub(/^p \(/, "#{move}\np ("))
  end

  def test_code_from_the_cache_in_forked_workers
    boot(LOAD_ALL)
    script = <<~'RUBY'
      20.times { |i| require "part#{i}" }
      expected = (0...20).map { |i| Object.const_get("Part#{i}").value }
      Process.warmup
      3.times do
        pid = fork do
          GC.start
          exit!((0...20).map { |i| Object.const_get("Part#{i}").value } == expected ? 0 : 1)
        end
        Process.wait(pid)
        p $?.exitstatus
      end
    RUBY
    assert_equal "0\n0\n0\n", boot(script)
  end

  def test_workers_that_load_at_the_same_time
    script = <<~'RUBY'
      pids = 4.times.map do
        fork { 20.times { |i| require "part#{i}" }; exit!(Part19.value[0] == 19 ? 0 : 1) }
      end
      pids.each { |pid| Process.wait(pid); p $?.exitstatus }
    RUBY
    assert_equal "0\n" * 4, boot(script)
  end

  def test_the_load_path_cache_sees_what_comes_and_goes
    script = <<~'RUBY'
      begin; require "later"; rescue LoadError; puts "not yet"; end
      File.write("#{$LOAD_PATH.first}/later.rb", "LATER = 1")
      $LOAD_PATH.unshift($LOAD_PATH.first + "/sub")
      puts require("later"), LATER
    RUBY
    assert_equal "not yet\ntrue\n1\n", boot(script)
  end
end
