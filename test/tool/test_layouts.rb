# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"

# A build of four functions stands for one of ruby.
class TestLayouts < Minitest::Test
  include ToolTest

  FUNCTIONS = %w[first second third fourth].freeze
  MAIN = <<~'C'
    int puts(const char *);
    char *getenv(const char *);
    int main(void) { puts(getenv("RUBYLIB")); return 0; }
  C

  def build
    objects = File.join(@top, "build/small/obj")
    FileUtils.mkdir_p(File.join(objects, ".ext/some-arch"))
    sources = FUNCTIONS.to_h { |name| [name, "void #{name}(void) {}"] }
    sources.update("main" => MAIN, "dmyext" => "void Init_ext(void) {}")
    sources.each { |name, text| write("build/small/obj/#{name}.c", text) }
    write("build/small/obj/Makefile", <<~MAKE)
      LIBRUBYARG_STATIC = -L. -lruby-static
      MAINOBJ = main.o dmyext.o
      $(PROGRAM): $(MAINOBJ) libruby-static.a
      \tcc -o $@ $(MAINOBJ) $(LIBRUBYARG)
      libruby-static.a: #{FUNCTIONS.map { |name| "#{name}.o" }.join(" ")} dmyext.o
      \tar qc $@ $^
    MAKE
    _, status = Open3.capture2e("make", "PROGRAM=ruby", "LIBRUBYARG=-L. -lruby-static", "ruby",
                                chdir: objects)
    assert_predicate status, :success?
  end

  def layouts(*arguments) = Open3.capture2e(File.join(@top, "tool/layouts"), *arguments)

  # The functions as they stand in the program.
  def order(layout)
    out, = Open3.capture2("nm", "-n", File.join(@top, "build/small/layouts/#{layout}/ruby.bin"))
    out.scan(/ T (\w+)$/).flatten & FUNCTIONS
  end

  def test_each_layout_has_an_order_of_its_own
    build
    out, status = layouts("small", "3")
    assert_predicate status, :success?, out
    orders = (1..3).map { |layout| order(layout) }
    orders.each { |found| assert_equal FUNCTIONS.sort, found.sort }
    assert_operator orders.uniq.size, :>, 1
    out, = Open3.capture2({ "RUBYLIB" => "/mine" }, File.join(@top, "build/small/layouts/2/ruby"))
    assert_match(%r{/obj/\.\./src/lib:.*/\.ext/common:.*/\.ext/some-arch:/mine$}, out)

    # What is up to date stays; what is older than the library is linked again, in the same order.
    assert_equal ["", true], layouts("small", "3").then { |text, ended| [text, ended.success?] }
    FileUtils.touch(File.join(@top, "build/small/layouts/1/ruby.bin"), mtime: Time.at(0))
    assert_equal "small: layout 1 of 3\n", layouts("small", "3").first
    assert_equal orders.first, order(1)
  end

  def test_what_cannot_be_linked_is_said
    [[], %w[cow], %w[cow none], %w[cow 0]].each do |arguments|
      out, status = layouts(*arguments)
      assert_equal [1, "usage: tool/layouts KIND NUMBER\n"], [status.exitstatus, out]
    end
    assert_equal "tool/layouts: run make cow first\n", layouts("cow", "1").first
    build
    write("build/small/obj/third.o", "no object")
    out, status = layouts("small", "1")
    assert_equal 1, status.exitstatus
    assert_match(/\Atool\/layouts: .*link\.log: /, out)
  end
end
