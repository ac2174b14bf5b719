# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
require "bcrypt"

class TestBcrypt < GemTest
  extension(/bcrypt_ext\.so\z/)

  SALT = "$2a$04$abcdefghijklmnopqrstuu"

  work(:hash) { ["", "secret", "é" * 20, "a" * 71].map { |text| BCrypt::Engine.hash_secret(text, SALT) } }
  work(:salts) { Array.new(5) { BCrypt::Engine.generate_salt(4)[0, 7] } }
  work(:passwords) do
    password = BCrypt::Password.create("secret", cost: 4)
    again = BCrypt::Password.new(password.to_s)
    [again == "secret", again == "Secret", again.cost, again.version, password.to_s.size]
  end

  # A known answer: a test vector of the paper, as crypt_blowfish has it.
  def test_known_answer
    assert_equal "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW",
                 BCrypt::Engine.hash_secret("U*U", "$2a$05$CCCCCCCCCCCCCCCCCCCCC.")
  end

  def test_errors
    assert_raises(BCrypt::Errors::InvalidSalt) { BCrypt::Engine.hash_secret("x", "nonsense") }
    assert_raises(BCrypt::Errors::InvalidHash) { BCrypt::Password.new("nonsense") }
    assert_raises(ArgumentError) { BCrypt::Password.create("x", cost: 40) }
  end

  # Other threads run while a password is hashed. Its strings may move or die meanwhile.
  def test_collections_beside_hashing
    salt = "$2a$06$abcdefghijklmnopqrstuu"
    expected = BCrypt::Engine.hash_secret("secret", salt)
    done = false
    collector = Thread.new { GC.compact until done }
    threads = Array.new(3) do
      Thread.new { Array.new(10) { BCrypt::Engine.hash_secret("sec#{"ret"}", salt) } }
    end
    values = threads.flat_map(&:value)
    done = true
    collector.join
    assert_equal [expected], values.uniq
  end
end
