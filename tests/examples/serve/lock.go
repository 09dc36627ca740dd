// Locks for a Go program, by one `onehold hold --serve`: onehold-json(5), REQUESTS.
package main

import "encoding/json"
import "fmt"

type locks struct { // for one goroutine
	requests *json.Encoder
	answers  *json.Decoder
	last     int
}

type answer struct {
	ID             int
	Event, Message string
}

// ask returns the next answer to this request. Others may come late, such as those about a lock that was lost.
func (l *locks) ask(request map[string]any) (got answer, err error) {
	err = l.requests.Encode(request)
	for err == nil && (got.ID != request["id"] || got.Event == "waiting") {
		got = answer{}
		err = l.answers.Decode(&got)
	}
	return got, err
}

// with takes a lock, calls work, and releases the lock. io.EOF: onehold has ended, and all locks are lost.
func (l *locks) with(name string, work func() error) error {
	l.last++
	id := l.last
	held, err := l.ask(map[string]any{"id": id, "command": "hold", "names": []string{name}, "wait": "forever"})
	if err == nil && held.Event == "held" {
		failed := work()
		if held, err = l.ask(map[string]any{"id": id, "command": "release"}); held.Event == "released" {
			return failed
		}
	}
	return fmt.Errorf("lock %s: %s (%v)", name, held.Message, err)
}
