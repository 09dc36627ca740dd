// The program for which lock.go holds locks: increment PROGRAM FILE ROUNDS
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
)

func main() {
	program, file := os.Args[1], os.Args[2]
	var rounds int
	fmt.Sscan(os.Args[3], &rounds)
	server := exec.Command(program, "hold", "--serve", fmt.Sprint("--die-with=", os.Getpid()))
	requests, _ := server.StdinPipe()
	answers, _ := server.StdoutPipe()
	if err := server.Start(); err != nil {
		log.Fatal(err)
	}
	held := locks{json.NewEncoder(requests), json.NewDecoder(answers), 0}
	for ; rounds > 0; rounds-- {
		if err := held.with("counter", func() error { return increment(file) }); err != nil {
			log.Fatal(err)
		}
	}
}

func increment(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var number int
	if _, err := fmt.Sscan(string(text), &number); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(fmt.Sprint(number+1)), 0o644)
}
