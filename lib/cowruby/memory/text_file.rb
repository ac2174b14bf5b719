# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "errors"

module CowRuby
  module Memory
    # Replaces a file, so that who reads it sees the old text or the new one and never a part.
    module TextFile
      MODE = 0o644
      # How a file of ours for Prometheus begins.
      OURS = /\A(?:# HELP )?cowruby_/.freeze

      # Raises Error, and leaves no other file behind.
      def self.write(path, text)
        replace(place(path), text)
      rescue SystemCallError => e
        raise Error, "#{path} cannot be written: #{SystemCallError.new(nil, e.errno).message}"
      end

      # Removes the file that write would replace, if there is one of ours. Raises nothing.
      def self.drop(path)
        file = place(path)
        remove(file) if File.file?(file) && File.binread(file, 40).to_s.match?(OURS)
      rescue Error, SystemCallError
        nil
      end

      # What a link leads to is replaced, and never a device, as /dev/stdout is. In a directory that all can
      # write, another user may have put the link there.
      def self.place(path)
        place = path
        if File.symlink?(path)
          foreign = ![0, Process.euid].include?(File.lstat(path).uid)
          raise Error, "#{path} cannot be written: it is a link of another user" if foreign

          place = File.realpath(path)
        end
        plain = !File.exist?(place) || File.file?(place) || File.directory?(place)
        raise Error, "#{path} cannot be written: it is no plain file" unless plain

        place
      end

      def self.replace(path, text)
        # node_exporter reads *.prom only.
        beside = File.join(File.dirname(path), ".#{File.basename(path)}.#{Process.pid}.new")
        # Of a process that had this number and was killed, or of somebody else: it is not written to.
        remove(beside)
        File.open(beside, File::WRONLY | File::CREAT | File::EXCL, MODE) do |file|
          file.write(text)
          file.chmod(MODE)
        end
        File.rename(beside, path)
      ensure
        remove(beside)
      end

      def self.remove(path)
        File.unlink(path)
      rescue Errno::ENOENT
        nil
      end
      private_class_method :place, :replace, :remove
    end
  end
end
