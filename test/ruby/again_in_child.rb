# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# For ruby -r: runs the program in a forked child. If it is a file, it has run in the parent before, where
# nobody sees what it prints: so the child inherits its compiled iseqs and, with YJIT, their machine code, and
# runs the same again. The parent passes on signals and ends as the child does.
#
# A file that cannot run twice in one process (once) runs in the child only. What the program itself starts is
# left alone, and nothing that is defined here stays for the program to see.
#
# tool/check, stage yjit. The runner of CRuby's test-all runs as ever; the rubies that its tests start do so.
lambda do
  # These end the process, or are done when it ends; or they leave a file or lose a class.
  once = /\b(?:at_exit|END|exit!|exec|kill|define_finalizer|mkdir|remove_const)(?!\w)/

  option = "-r#{__FILE__}"
  if File.basename($0) == "runner.rb"
    ENV["RUBYOPT"] = [*ENV["RUBYOPT"], option].join(" ")
    return
  end
  others = ENV["RUBYOPT"].to_s.split - [option]
  ENV["RUBYOPT"] = others.empty? ? nil : others.join(" ")

  if File.file?($0) && !File.read($0).match?(once)
    iseq = RubyVM::InstructionSequence.compile_file($0)
    streams = [STDIN, STDOUT, STDERR]
    kept = streams.map(&:dup)
    streams.zip(%w[r w w]) { |stream, mode| stream.reopen(File::NULL, mode) }
    first = Process.pid
    begin
      iseq.eval
    rescue Exception # the program's exit as well
      nil
    end
    exit!(1) if Process.pid != first
    GC.stress = false
    (Thread.list - [Thread.current]).each(&:kill)
    Object.constants(false).each do |name|
      Object.send(:remove_const, name) if Object.const_source_location(name)&.first == $0
    end
    Object.private_instance_methods(false).each do |name|
      Object.remove_method(name) if Object.instance_method(name).source_location&.first == $0
    end
  end

  load File.join(__dir__, "run_in_child.rb")
  if iseq
    $stdin, $stdout, $stderr = streams
    streams.zip(kept) { |stream, copy| stream.reopen(copy) && copy.close }
    iseq.eval
    exit
  end
end.call
