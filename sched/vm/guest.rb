# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "fileutils"
require "json"
require "open3"
require "rbconfig"
require "tmpdir"

# A virtual machine (QEMU without hardware help) that boots the kernel of packages.pin, runs one shell script
# as its init and powers off. What the script leaves in /out comes back as files.
class Guest
  class Error < StandardError; end

  HERE = File.expand_path("..", __dir__)
  BUILD = File.expand_path("../build/sched", HERE)
  PROGRAMS = %w[aggregate chatroom spin].map { |name| "#{BUILD}/bin/#{name}" }
  # Without a hypervisor's clock the kernel would distrust the emulated one and read a slower one. Its tests
  # of ciphers would compute for seconds beside what is measured.
  KERNEL_LINE = "console=ttyS0 quiet panic=-1 tsc=reliable clocksource=tsc nokaslr mitigations=off " \
                "cgroup_no_v1=all random.trust_cpu=on cryptomgr.notests=1 rdinit=/init"

  # In lines of the kernel's log: something is wrong with it, or it ended the scheduler by itself.
  COMPLAINTS = ["WARNING:", "BUG:", "Oops", "stall", "soft lockup", "blocked for more than",
                "general protection", "Out of memory", "Call Trace", "INFO: rcu", "traps: ", "segfault at",
                "sched_ext: (?!BPF scheduler )",
                'sched_ext: .* disabled \\((?!unregistered from user space\\))'].freeze
  COMPLAINT = Regexp.new(COMPLAINTS.join("|"))

  # With two last-level caches: else the kernel's CONFIG_SCHED_CACHE would have nothing to choose from.
  FOUR_CPUS = "4,sockets=2,cores=2"

  # What came back: status of the script, its two outputs, the directory with all files of /out.
  Result = Struct.new(:status, :stdout, :stderr, :directory, keyword_init: true) do
    def json(name) = JSON.parse(File.read("#{directory}/#{name}"))
    def file(name) = File.read("#{directory}/#{name}")

    # What the kernel complained of, but for lines that match +expected+.
    def complaints(expected = nil) = Guest.complaints(file("dmesg"), expected)
  end

  def self.complaints(log, expected = nil)
    log.scrub.lines(chomp: true).grep(COMPLAINT).reject { |line| expected&.match?(line) }
  end

  # The release of the kernel that packages.pin names, as uname has it.
  def self.pinned_kernel(pin = File.read("#{HERE}/packages.pin"))
    names = pin.scan(%r{/linux-binary-([^_/]+)_\S+\.deb}).flatten
    raise Error, "packages.pin names #{names.size} kernels, not one" unless names.size == 1

    names.first
  end

  # cpus: 1 or more; all share one thread of the emulator. With a thread for each, the kernel dies once in
  # some hundred attachments: a CPU runs an old translation of code that another one has just changed (an
  # int3 that nobody awaits). icount: the guest's clock counts instructions, one a ns, so that times do not
  # depend on this machine's load; with several CPUs, one of them may then stand still for seconds in rare
  # cases. files: path in the guest => path here. disk: an ext4 image, mounted at /mnt. seconds: the guest is
  # killed after them.
  def initialize(cpus: 1, icount: true, memory: 1024, files: {}, disk: nil, seconds: 1_500)
    @cpus = cpus
    @icount = icount
    @memory = memory
    @files = files
    @disk = disk
    @seconds = seconds
  end

  # Boots, runs the text of a shell script, and returns a Result. Raises Error with what the console said if
  # the guest did not come to its end.
  def run(script, name: "guest")
    directory = "#{BUILD}/guest/#{name}"
    FileUtils.rm_rf(directory)
    FileUtils.mkdir_p("#{directory}/out")
    make_initramfs(directory, script)
    boot(directory)
    unpack(directory)
  end

  private

  def kernel
    @kernel ||= "#{BUILD}/root/usr/lib/modules/#{Guest.pinned_kernel}/vmlinuz".tap do |path|
      File.exist?(path) || system("#{HERE}/fetch", BUILD, "linux-binary", "linux-modules")
      File.exist?(path) or raise Error, "there is no kernel to boot (see above)"
    end
  end

  def need(command, package)
    found = ENV["PATH"].split(":").map { |path| "#{path}/#{command}" }.find { |path| File.executable?(path) }
    found or raise Error, "#{command} is missing; apt-get install #{package}"
  end

  def make_initramfs(directory, script)
    tree = "#{directory}/tree"
    busybox = need("busybox", "busybox-static")
    FileUtils.mkdir_p(%w[bin dev proc sys tmp out mnt etc run].map { |part| "#{tree}/#{part}" })
    FileUtils.cp(busybox, "#{tree}/bin/busybox")
    PROGRAMS.each do |path|
      File.exist?(path) or raise Error, "#{path} is missing; run make -C sched"
      FileUtils.cp(path, "#{tree}/bin")
    end
    @files.each do |there, here|
      FileUtils.mkdir_p(File.dirname("#{tree}/#{there}"))
      FileUtils.cp_r(here, "#{tree}/#{there}")
    end
    add_disk_module(tree) if @disk
    File.write("#{tree}/etc/passwd", "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")
    File.write("#{tree}/script", script)
    FileUtils.cp("#{__dir__}/init", "#{tree}/init")
    FileUtils.chmod(0o755, "#{tree}/init")
    command = "find . | cpio --quiet -o -H newc | gzip -1 > #{directory}/initramfs.gz"
    system("sh", "-c", command, chdir: tree) or raise Error, "cpio failed; apt-get install cpio"
    FileUtils.rm_rf(tree)
  end

  def add_disk_module(tree)
    packed = Dir["#{File.dirname(kernel)}/kernel/drivers/block/virtio_blk.ko*"].first
    packed or raise Error, "the kernel package has no virtio_blk module"
    FileUtils.cp(packed, tree)
    return unless packed.end_with?(".xz")

    system("xz", "-d", "#{tree}/#{File.basename(packed)}") or raise Error, "no xz; apt-get install xz-utils"
  end

  def boot(directory)
    qemu = need("qemu-system-x86_64", "qemu-system-x86")
    command = [qemu, "-M", "pc", "-cpu", "max,la57=off", "-nographic",
               "-nodefaults", "-no-reboot", "-m", @memory.to_s, "-smp", @cpus == 4 ? FOUR_CPUS : @cpus.to_s,
               "-kernel", kernel, "-initrd", "#{directory}/initramfs.gz", "-append", KERNEL_LINE,
               "-serial", "file:#{directory}/console", "-device", "virtio-serial",
               "-chardev", "file,id=out,path=#{directory}/out.tar", "-device", "virtserialport,chardev=out"]
    command += ["-icount", "shift=0,sleep=off"] if @icount
    command += ["-accel", "tcg,thread=single"]
    if @disk
      command += ["-drive", "file=#{@disk},if=none,id=disk,format=raw,readonly=on",
                  "-device", "virtio-blk,drive=disk"]
    end
    # It ends even where this process is killed, and holds no lock of a caller.
    command = ["timeout", "-s", "KILL", (@seconds + 10).to_s, *command]
    pid = Process.spawn(*command, %i[out err] => "#{directory}/qemu.log", in: "/dev/null", pgroup: true,
                        close_others: true)
    ended = wait(pid)
    words = "the guest did not end within #{@seconds} s; its console: "
    ended or raise Error, words + tail("#{directory}/console")
  ensure
    kill(pid) if pid && !ended
  end

  # Also where this process is interrupted.
  def kill(pid)
    Process.kill(:KILL, -pid)
    Process.wait(pid)
  end

  def wait(pid)
    deadline = now + @seconds
    until Process.wait(pid, Process::WNOHANG)
      return false if now > deadline

      sleep 0.05
    end
    true
  end

  def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

  def tail(path) = File.exist?(path) ? File.read(path).scrub.lines.last(30).join : "(none)"

  def unpack(directory)
    console = tail("#{directory}/console")
    unless system("tar", "-xf", "#{directory}/out.tar", "-C", "#{directory}/out", err: File::NULL)
      words = tail("#{directory}/qemu.log")
      raise Error, "the guest gave nothing back; QEMU: #{words}; its console: #{console}"
    end

    status, stdout, stderr = %w[status stdout stderr].map do |name|
      path = "#{directory}/out/#{name}"
      File.exist?(path) or raise Error, "the guest's script did not end; its console: #{console}"
      File.read(path)
    end
    Result.new(status: status.to_i, stdout: stdout, stderr: stderr, directory: "#{directory}/out")
  end
end
