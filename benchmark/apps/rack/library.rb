# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "erb"
require "json"

# A plain Rack application over a large data set that is loaded before the
# fork: 60,000 books with an index of their words. Requests read it, allocate
# and render; they change nothing but what a book remembers of itself.
class Library
  SIZE = 60_000
  SYLLABLES = %w[al ber cor dan eth fir gal hol ister jun kel lor mar nin or pel quin ros sel tan ur ver wil
                 yar zen].freeze
  PAGE = ERB.new(<<~HTML, trim_mode: "-")
    <html><body><h1><%= ERB::Util.h(book.heading) %></h1>
    <ul>
    <% book.words.each do |word| -%>
      <li><%= ERB::Util.h(word) %>: <%= index[word].size %></li>
    <% end -%>
    </ul></body></html>
  HTML

  # The heading is made when it is first asked for.
  Book = Struct.new(:id, :title, :author, :year, :words, :price) do
    def heading
      @heading ||= "#{title}, by #{author} (#{year})"
    end
  end

  def initialize
    random = Random.new(60_000)
    names = Array.new(8_000) { Array.new(2 + random.rand(3)) { SYLLABLES.sample(random: random) }.join }.uniq
    @books = Array.new(SIZE) { |id| book(id, names, random) }
    @index = Hash.new { |hash, word| hash[word] = [] }
    @books.each { |book| book.words.each { |word| @index[word] << book.id } }
    @index.default_proc = nil
  end

  def call(env)
    path = env["PATH_INFO"]
    case path
    when "/up" then answer("up", "text/plain")
    when %r{\A/books/(\d+)\z} then show($1.to_i)
    when %r{\A/pages/(\d+)\z} then page($1.to_i)
    when %r{\A/words/(\w+)\z} then search($1)
    when %r{\A/years/(\d+)\z} then year($1.to_i)
    else [404, {}, []]
    end
  end

  private

  def book(id, names, random)
    words = names.sample(4 + random.rand(5), random: random)
    author = Array.new(2) { names[random.rand(names.size)].capitalize }.join(" ")
    Book.new(id, words.first(3).map(&:capitalize).join(" "), author,
             1900 + random.rand(120), words, random.rand(1.0..80.0))
  end

  def show(id)
    book = @books[id % SIZE]
    answer(JSON.generate(book.to_h.merge(heading: book.heading)))
  end

  def page(id)
    book = @books[id % SIZE]
    index = @index
    answer(PAGE.result_with_hash(book: book, index: index), "text/html")
  end

  def search(word)
    found = (@index[word] || []).map { |id| @books[id] }.sort_by(&:price)
    answer(JSON.generate(word: word, count: found.size, books: found.first(20).map(&:heading)))
  end

  def year(number)
    found = @books.each_slice(20).filter_map { |first, *| first if first.year == number }
    answer(JSON.generate(year: number, mean: found.sum(&:price).fdiv([found.size, 1].max),
                         titles: found.first(10).map(&:title)))
  end

  def answer(body, type = "application/json")
    [200, { "content-type" => type, "content-length" => body.bytesize.to_s }, [body]]
  end
end
