# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
require "racc/parser"
require "racc/static"
require "strscan"
require "racc"

class TestRacc < GemTest
  extension(%r{racc/cparse\.so\z})

  GRAMMAR = <<~RACC
    class %s
      prechigh
        nonassoc UMINUS
        left '*' '/'
        left '+' '-'
      preclow
    rule
      target: exp { result = val[0] } | error { result = :bad }
      exp: exp '+' exp { result += val[2] }
         | exp '-' exp { result -= val[2] }
         | exp '*' exp { result *= val[2] }
         | exp '/' exp { result /= val[2] }
         | '(' exp ')' { result = val[1] }
         | '-' NUMBER = UMINUS { result = -val[1] }
         | NUMBER
    end
    ---- inner
      def parse(text)
        tokens = tokens_of(text)
        @tokens = tokens.each
        do_parse
      end
      def parse_by_yield(text) = yyparse(self, :each_token_of_text).tap { @text = text }
      def with_text(text) = (@text = text; self)
      def each_token_of_text = tokens_of(@text).each { |token| yield token }
      def tokens_of(text)
        tokens = text.scan(/\\d+|[-+*\\/()?]/)
        tokens.map { |t| t =~ /\\d/ ? [:NUMBER, t.to_i] : [t, t] } + [[false, "$"]]
      end
      def next_token = @tokens.next
      def on_error(_id, value, _stack) = (raise Racc::ParseError, "at \#{value}" unless @text == :recover)
  RACC

  # Gives the source of a parser's class for the grammar, as the racc command writes it.
  def self.generate(name)
    parser = Racc::GrammarFileParser.new
    grammar = format(GRAMMAR.gsub("%", "%%").sub("%%s", "%s"), name).gsub("\\#", "#")
    result = parser.parse(grammar, "grammar", 1)
    states = Racc::States.new(result.grammar).nfa.dfa
    params = result.params.dup
    generator = Racc::ParserFileGenerator.new(states, params)
    generator.generate_parser
  end

  eval(generate("Calculator")) # rubocop:disable Security/Eval
  DEEP = "#{"(" * 40}1#{"+1)" * 40}"

  work(:parses) { ["1+2*3", "(1+2)*3", "-4*(2-7)/5", DEEP].map { |text| Calculator.new.parse(text) } }
  work(:yields) do
    ["1+2*3", DEEP].map do |text|
      parser = Calculator.new.with_text(text)
      parser.yyparse(parser, :each_token_of_text)
    end
  end
  work(:generates) { TestRacc.generate("Again").size }

  def test_the_compiled_runtime_is_used = assert_equal("c", Racc::Parser::Racc_Runtime_Type)

  def test_values
    values = ["1+2*3", "(1+2)*3", "-4*(2-7)/5", DEEP].map { |text| Calculator.new.parse(text) }
    assert_equal [7, 9, 4, 41], values
  end

  def test_errors
    100.times { assert_raises(Racc::ParseError) { Calculator.new.parse("1++") } }
    assert_raises(Racc::ParseError) { Calculator.new.parse("") }
    GC.start
    assert_equal 3, Calculator.new.parse("1+2")
  end

  def test_leaving_a_parse_in_the_middle
    parser = Calculator.new
    def parser.next_token = throw(:out, :left)
    left = catch(:out) do
      parser.instance_variable_set(:@tokens, [].each)
      parser.do_parse
    end
    assert_equal :left, left
    assert_equal 3, Calculator.new.parse("1+2")
  end
end
