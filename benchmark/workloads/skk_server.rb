# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require "socket"

# A SKK dictionary: Japanese postal codes and the places they stand for.
class SkkDictionary
  # The file's first line names it; Ruby knows it by that name.
  ENCODING = Encoding.find("EUC-JIS-2004")
  ENTRY = %r{\A(?<code>[^ ;][^ ]*) (?<candidates>/.*/)\n?\z}
  Malformed = Class.new(StandardError)

  def self.load(path)
    entries = {}
    File.foreach(path, encoding: ENCODING).with_index(1) do |line, number|
      raise Malformed, "#{path}:#{number}: not #{ENCODING}" unless line.valid_encoding?
      next if line.start_with?(";") # a comment

      entry = ENTRY.match(line) || raise(Malformed, "#{path}:#{number}: not an entry")
      entries[entry[:code]] = entry[:candidates]
    end
    entries
  end
end

# One process of a SKK server: it shares the listening socket with others and
# serves many clients at a time. A request is a line, "1CODE "; the answer is
# "1/PLACE/", or the request with 4 in front where the code is not known.
# "2" asks for the version, "3" who serves (here the process), "0" ends the
# connection. What is not understood gets "0", the protocol's error.
class SkkServer
  LONGEST_LINE = 1_024
  VERSION = "cow-skk.1 "
  ERROR = "0\n"

  # The block is called after each round of answers.
  def initialize(dictionary, listener, &after_round)
    @dictionary = dictionary
    @listener = listener
    @after_round = after_round
    @clients = {}.compare_by_identity
    @chunk = "".b
    @answered = 0
  end

  attr_reader :answered

  # Serves until something comes through +orders+.
  def serve(orders)
    loop do
      ready, = IO.select([orders, @listener, *@clients.keys])
      return if ready.include?(orders)

      ready.each { |io| io.equal?(@listener) ? accept : hear(io) }
      @after_round&.call
    end
  end

  private

  def accept
    client = @listener.accept_nonblock(exception: false)
    @clients[client] = "".b unless client == :wait_readable # another process was faster
  rescue Errno::ECONNABORTED, Errno::ECONNRESET
    nil
  end

  def hear(client)
    case client.read_nonblock(4_096, @chunk, exception: false)
    when :wait_readable then return
    when nil then return drop(client)
    end
    pending = @clients[client] << @chunk
    while (line = pending.slice!(/\A.*\n/n))
      answer = line.bytesize > LONGEST_LINE ? ERROR : answer(line.chomp)
      return drop(client) unless answer

      say(client, answer)
    end
    return if pending.bytesize <= LONGEST_LINE

    say(client, ERROR)
    drop(client)
  rescue Errno::ECONNRESET, Errno::EPIPE, Errno::ETIMEDOUT, IO::WaitWritable
    # Gone, or it does not read its answers.
    drop(client)
  end

  # nil ends the connection.
  def answer(line)
    case line.getbyte(0)
    when 0x30 then nil
    when 0x31 then look_up(line)
    when 0x32 then "#{VERSION}\n"
    when 0x33 then "#{Process.pid} \n"
    else ERROR
    end
  end

  def look_up(line)
    code = line.byteslice(1..).force_encoding(SkkDictionary::ENCODING)
    return ERROR unless code.valid_encoding?

    code = code.rstrip
    return ERROR if code.empty?

    @answered += 1
    candidates = @dictionary[code]
    candidates ? "1#{candidates}\n" : "4#{line.byteslice(1..)}\n"
  end

  def say(client, answer)
    # The kernel's buffer holds thousands of answers: a client that lets it
    # run full is not served further.
    raise Errno::EPIPE if client.write_nonblock(answer) < answer.bytesize
  end

  def drop(client)
    @clients.delete(client)
    client.close
  end
end
