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
      def tokens_of(text) = text.scan(/\\d+|[-+*\\/()?]/).map { |t| t =~ /\\d/ ? [:NUMBER, t.to_i] : [t, t] } + [[false, "$"]]
      def next_token = @tokens.next
      def on_error(_id, value, _stack) = (raise Racc::ParseError, "at \#{value}" unless @text == :recover)
  RACC

  # Makes a parser's class from the grammar, as the racc command does.
  def self.generate(name)
    parser = Racc::GrammarFileParser.new
    result = parser.parse(format(GRAMMAR.gsub("%", "%%").sub("%%s", "%s"), name).gsub("\\#", "#"), "grammar", 1)
    states = Racc::States.new(result.grammar).nfa.dfa
    params = result.params.dup
    generator = Racc::ParserFileGenerator.new(states, params)
    generator.generate_parser
  end

  eval(generate("Calculator")) # rubocop:disable Security/Eval
  DEEP = "#{"(" * 40}1#{"+1)" * 40}"

  work(:parses) { ["1+2*3", "(1+2)*3", "-4*(2-7)/5", DEEP].map { |text| Calculator.new.parse(text) } }
  work(:yields) { ["1+2*3", DEEP].map { |text| Calculator.new.with_text(text).then { |parser| parser.yyparse(parser, :each_token_of_text) } } }
  work(:generates) { TestRacc.generate("Again").size }

  def test_it_is_the_compiled_core = assert_equal("c", Racc::Parser::Racc_Runtime_Type)

  def test_values = assert_equal([7, 9, 4, 41], ["1+2*3", "(1+2)*3", "-4*(2-7)/5", DEEP].map { |text| Calculator.new.parse(text) })

  def test_errors
    100.times { assert_raises(Racc::ParseError) { Calculator.new.parse("1++") } }
    assert_raises(Racc::ParseError) { Calculator.new.parse("") }
    GC.start
    assert_equal 3, Calculator.new.parse("1+2")
  end

  def test_leaving_a_parse_in_the_middle
    parser = Calculator.new
    def parser.next_token = throw(:out, :left)
    assert_equal(:left, catch(:out) { parser.instance_variable_set(:@tokens, [].each); parser.do_parse })
    assert_equal 3, Calculator.new.parse("1+2")
  end
end
