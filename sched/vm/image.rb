# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "digest"
require "fileutils"
require "open3"
require_relative "guest"

# An ext4 image with directories and programs of this machine at the paths that they have here, and with the
# libraries that they need, so that they run in the guest after chroot.
module Image
  # paths: directories or files to copy; files: path there => path here. Gives the image's path.
  def self.build(name, paths:, files: {})
    image = "#{Guest::BUILD}/images/#{name}.ext4"
    FileUtils.mkdir_p(File.dirname(image))
    Dir.mktmpdir("image", Guest::BUILD) do |tree|
      paths.each { |path| copy(path, tree + path) }
      files.each { |there, here| copy(here, tree + there) }
      copy("/bin/busybox", "#{tree}/bin/busybox")
      FileUtils.ln_s("busybox", "#{tree}/bin/sh")
      FileUtils.mkdir_p(%w[proc sys dev tmp run var/log etc].map { |part| "#{tree}/#{part}" })
      File.write("#{tree}/etc/passwd", "root:x:0:0::/:/bin/sh\nwww-data:x:33:33::/:/bin/sh\n")
      File.write("#{tree}/etc/group", "root:x:0:\nwww-data:x:33:\n")
      File.write("#{tree}/etc/hosts", "127.0.0.1 localhost\n")
      add_libraries(tree)
      write(tree, image)
    end
    image
  end

  def self.copy(from, to)
    File.exist?(from) or raise Guest::Error, "#{from} is missing"
    FileUtils.mkdir_p(File.dirname(to))
    FileUtils.cp_r(from, to, remove_destination: true)
  end

  def self.add_libraries(tree)
    programs = Dir.glob("#{tree}/**/*", File::FNM_DOTMATCH).select { |path| File.file?(path) && elf?(path) }
    needed = programs.each_slice(100).flat_map do |some|
      Open3.capture2e("ldd", *some).first.scan(%r{(?:=> |^\s+)(/\S+) \(0x}).flatten
    end
    needed.uniq.each do |library|
      copy(File.realpath(library), tree + library) unless library.start_with?(tree)
    end
  end

  def self.elf?(path) = File.symlink?(path) ? false : File.binread(path, 4) == "\x7FELF".b

  def self.write(tree, image)
    blocks = Open3.capture2("du", "-s", "-B", "1M", tree).first.to_i
    FileUtils.rm_f(image)
    output, status = Open3.capture2e("/usr/sbin/mke2fs", "-q", "-t", "ext4", "-d", tree, image,
                                     "#{(blocks * 1.3).to_i + 32}M")
    raise Guest::Error, "mke2fs failed: #{output}" unless status.success?
  end
end
