// Command fakecodex stands in for codex in the image for tests; it is built
// static and installed there as codex. What it does is said in its prompt: see
// package fakecodex.
package main

import (
	"os"
	"time"

	"drawbridge/scripts/internal/fakecodex"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == fakecodex.Child {
		time.Sleep(time.Hour)
		return
	}
	c := &fakecodex.Codex{Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	os.Exit(c.Run())
}
