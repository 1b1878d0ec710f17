// Command tally reads `go test -json` from stdin, prints what a person wants to
// see of it, and fails when a test failed (package tally).
//
//	go test -json ./... | tally [-counts FILE]   adds the counts to FILE
//	tally -sum FILE                              prints the closing line
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"drawbridge/scripts/internal/tally"
)

func main() {
	counts := flag.String("counts", "", "add the counts to this `file`")
	sum := flag.String("sum", "", "print the sum of this `file`")
	flag.Parse()
	if err := run(*counts, *sum); err != nil {
		fmt.Fprintf(os.Stderr, "tally: error: %v\n", err)
		os.Exit(1)
	}
}

func run(counts, sum string) error {
	if sum != "" {
		total, err := read(sum)
		if err != nil {
			return err
		}
		fmt.Println(total)
		if total.Passed == 0 {
			return errors.New("no test passed")
		}
		return nil
	}
	got, err := tally.Read(os.Stdin, os.Stdout, os.Getenv("CI") == "true")
	if err != nil {
		return err
	}
	fmt.Println(got)
	if counts != "" {
		f, err := os.OpenFile(counts, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return fmt.Errorf("keep the counts: %w", err)
		}
		if err := errors.Join(json.NewEncoder(f).Encode(got), f.Close()); err != nil {
			return fmt.Errorf("keep the counts: %w", err)
		}
	}
	if got.Failed > 0 {
		return fmt.Errorf("%d failed", got.Failed)
	}
	return nil
}

func read(path string) (tally.Counts, error) {
	f, err := os.Open(path)
	if err != nil {
		return tally.Counts{}, fmt.Errorf("read the counts: %w", err)
	}
	defer f.Close()
	var total tally.Counts
	dec := json.NewDecoder(f)
	for {
		var c tally.Counts
		if err := dec.Decode(&c); errors.Is(err, io.EOF) {
			return total, nil
		} else if err != nil {
			return total, fmt.Errorf("read the counts: %w", err)
		}
		total = total.Add(c)
	}
}
