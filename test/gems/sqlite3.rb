# frozen_string_literal: true
# SPDX-License-Identifier: BSD-2-Clause

require_relative "helper"
require "sqlite3"
require "tmpdir"

class TestSqlite3 < GemTest
  extension(/sqlite3_native\.so\z/)

  # Gives the block a new database with twelve rows, in memory or in a file.
  def database(path = ":memory:")
    db = SQLite3::Database.new(path)
    db.execute("create table t (id integer primary key, name text, data blob, number real)")
    db.transaction do
      12.times do |i|
        db.execute("insert into t (name, data, number) values (?, ?, ?)",
                   ["näme #{i}", SQLite3::Blob.new("\0\xff".b * i), i / 2.0])
      end
    end
    yield db
  ensure
    db&.close
  end

  work(:rows) do
    database do |db|
      [db.execute("select * from t where id % 3 = 1 order by id"),
       db.get_first_value("select sum(number) from t"), db.changes, db.last_insert_row_id]
    end
  end

  work(:statements) do
    database do |db|
      db.prepare("select name, id from t where id > :low and name like :name") do |statement|
        statement.bind_param("low", 1)
        statement.bind_param("name", "%2%")
        [statement.columns, statement.types, statement.to_a, statement.bind_parameter_count]
      end
    end
  end

  work(:hashes) do
    database do |db|
      db.results_as_hash = true
      db.execute("select id, name, null as n from t limit 3")
    end
  end

  work(:functions) do
    database do |db|
      db.create_function("twice", 1) { |function, value| function.result = "#{value}#{value}" }
      db.create_aggregate("joined", 1, ->(context, value) { context[:all] = "#{context[:all]}#{value}," },
                          ->(context) { context.result = context[:all] })
      db.collation("backwards", Class.new { def compare(a, b) = b <=> a }.new)
      [db.execute("select twice(name) from t limit 2"), db.execute("select joined(id) from t where id < 9"),
       db.execute("select name from t order by name collate backwards limit 2")]
    end
  end

  work(:values) do
    database do |db|
      values = [nil, 2**62, 1.5, "ü\0x", SQLite3::Blob.new("\0\1"), "ä".encode("UTF-16LE")]
      db.get_first_row("select ?, ?, ?, ?, ?, ?", values).map(&:inspect)
    end
  end

  work(:transactions) do
    database do |db|
      assert_raises(RuntimeError) { db.transaction { db.execute("delete from t"); raise "no" } }
      db.transaction { db.execute("delete from t where id > 5") }
      [db.get_first_value("select count(*) from t"), db.transaction_active?]
    end
  end

  def test_errors
    database do |db|
      assert_raises(SQLite3::SQLException) { db.execute("selec 1") }
      assert_raises(SQLite3::ConstraintException) { db.execute("insert into t (id) values (1)") }
      assert_raises(SQLite3::Exception) { db.prepare("select 1").tap(&:close).step }
      db.create_function("boom", 0) { |_| raise ArgumentError, "asked for" }
      assert_raises(StandardError) { db.execute("select boom()") }
      assert_equal 12, db.get_first_value("select count(*) from t")
    end
    assert_raises(SQLite3::CantOpenException) { SQLite3::Database.new("/nonexistent/db") }
    closed = SQLite3::Database.new(":memory:").tap(&:close)
    assert_raises(ArgumentError) { closed.execute("select 1") }
  end

  def test_databases_that_are_not_closed_are_freed
    500.times do
      db = SQLite3::Database.new(":memory:")
      db.prepare("select 1").step
    end
    3.times { GC.start }
    assert_equal [[1]], SQLite3::Database.new(":memory:").execute("select 1")
  end

  def test_callbacks_survive_moving
    database do |db|
      db.create_function("kept", 1) { |function, value| function.result = "kept #{value}" }
      db.trace { |_| nil }
      db.busy_handler { |_| 0 }
      statement = db.prepare("select kept(name) from t limit 1")
      move
      assert_equal [["kept näme 0"]], statement.to_a
      statement.close
    end
  end

  # Each worker opens a connection of its own. Versions of the gem that know how close the master's connection
  # in the child.
  def test_workers_with_connections_of_their_own
    Dir.mktmpdir do |dir|
      path = "#{dir}/db"
      database(path) { |db| db.journal_mode = "wal" }
      3.times do |worker|
        in_child do
          db = SQLite3::Database.new(path)
          db.busy_timeout = 5_000
          10.times { |i| db.execute("insert into t (name) values (?)", ["w#{worker} #{i}"]) }
          GC.start
          db.close
        end
      end
      db = SQLite3::Database.new(path)
      count = db.get_first_value("select count(*) from t")
      db.close
      assert_equal 42, count, "rows of the master and of three workers"
    end
  end

  def test_an_open_database_at_a_fork
    Dir.mktmpdir do |dir|
      database("#{dir}/db") do |db|
        in_child { GC.start }
        assert_equal 12, db.get_first_value("select count(*) from t")
      end
    end
  end
end
