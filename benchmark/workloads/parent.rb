# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

# A parent as it stands after boot: a mixture of strings, arrays, hashes and
# objects, about 6,000 live slots a MB. Much of it has grown since it was made,
# so that compacting finds a better slot for it in another heap; and there are
# holes, because of what a boot makes, most dies at once and some when the boot
# is over. A dynamic symbol keeps its name alive until it is itself swept, so it
# takes two collections to be rid of both.
module Parent
  UNITS_PER_MB = 305

  Record = Struct.new(:id, :name, :tags)

  class Account
    def initialize(id)
      @id = id
      @name = "account number #{id}"
    end

    def grow(id)
      @roles = []
      4.times { |k| @roles << "role-#{(id + k) % 50}" }
      @settings = { id: id, mail: "user#{id}@example.org", language: "ja-#{id % 3}" }
      @history = +""
      (1 + id % 50).times { |k| @history << "entry #{k} of the history of account #{id}, " } # most by malloc
    end
  end

  # Gives what a server keeps; +mb+ is about the size of the process.
  def self.boot(mb)
    kept = []
    of_the_boot = []
    (mb * UNITS_PER_MB).times do |i|
      account = Account.new(i)
      kept << account << Record.new(i, "record-#{i}", ["a-#{i}", "b-#{i}"]) << [i, i.to_s, "#{i}.5"]
      kept << (0...10).to_h { |k| [k, i + k] } if i % 4 == 0 # more than 8 entries: a table
      of_the_boot << "file #{i}" << ["token #{i}", i] << "word_#{i}".to_sym if i % 2 == 0
      6.times { |k| "at once #{k}" }
      account.grow(i)
    end
    kept
  end
end
