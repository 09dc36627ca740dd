# Locks for a Ruby program, by one `onehold hold --serve`: onehold-json(5), REQUESTS.
require "json"
require "open3"

class Onehold
  class Error < StandardError; end

  def initialize(program)
    @stdin, @stdout, = Open3.popen2(program, "hold", "--serve", "--die-with=#{Process.pid}", pgroup: true)
    @last = 0
  end

  # Takes a lock, calls the block with the hold number, and releases the lock. For one thread.
  def with(name, **options)
    id = @last += 1
    held = ask(id, command: "hold", names: [name], **options)
    raise Error, held["message"] unless held["event"] == "held"
    begin
      yield held["hold"]
    ensure
      last = ask(id, command: "release")
      # Not if the block has raised an error of its own.
      raise Error, "lost #{name}" unless $! || last["event"] == "released"
    end
  end

  # The next answer to this request. Others may come late, such as those about a lock that was lost.
  def ask(id, **request)
    @stdin.puts(JSON.generate(id: id, **request))
    while (line = @stdout.gets)
      answer = JSON.parse(line)
      return answer if answer["id"] == id && answer["event"] != "waiting"
    end
    raise Error, "onehold has ended: all locks are lost"
  end
end

program, file, rounds = ARGV
locks = Onehold.new(program)
Integer(rounds).times { locks.with("counter", wait: "forever") { File.write(file, Integer(File.read(file)) + 1) } }
