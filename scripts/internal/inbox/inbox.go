// Package inbox is the receiving end of the example Host: a directory that keeps
// what callbacks brought, each message once, however often it is handed over.
//
// cmd/inbox is the callback executable: it calls Deliver with what the Profile
// gives it on its command line and on stdin, and prints the acknowledgement.
// The message is on disk before the acknowledgement leaves. The Host reads the
// directory with Messages and waits with Await. For tests a script (SetScript)
// makes the executable answer otherwise than with an acceptance.
package inbox

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Files of an inbox.
const (
	messagesFile = "messages.jsonl" // accepted messages, in order
	attemptsFile = "attempts.jsonl" // every start of the executable
	scriptFile   = "script"         // verdicts for the next attempts, one a line
	lockFile     = "lock"
)

// MaxBody bounds one body.
const MaxBody = 1 << 20

// Message is one callback as it arrived.
type Message struct {
	AcceptanceID   string    `json:"acceptance_id"`
	Session        string    `json:"session"`
	DeliveryID     string    `json:"delivery_id"`
	MessageID      string    `json:"message_id"`
	IdempotencyKey string    `json:"idempotency_key"`
	Body           string    `json:"body"`
	At             time.Time `json:"at"`
}

// Verdict is what the executable answers.
type Verdict string

// The four answers of an acknowledgement, and three ways to misbehave.
const (
	Accepted Verdict = "accepted"
	Retry    Verdict = "retry"
	Rejected Verdict = "rejected"
	Unknown  Verdict = "unknown"

	Garbage Verdict = "garbage" // print something else
	Crash   Verdict = "crash"   // end with status 7 and print nothing
	Hang    Verdict = "hang"    // sleep until killed, at most a minute
)

var verdicts = []Verdict{Accepted, Retry, Rejected, Unknown, Garbage, Crash, Hang}

// Attempt is one start of the executable.
type Attempt struct {
	PID        int       `json:"pid"`
	DeliveryID string    `json:"delivery_id"`
	Verdict    Verdict   `json:"verdict"`
	At         time.Time `json:"at"`
}

// Deliver takes one callback: notes the attempt, asks the script for the
// verdict, and when that is Accepted keeps the message unless one with the same
// idempotency key is there. It gives the kept message.
func Deliver(dir string, m Message, now time.Time) (Message, Verdict, error) {
	unlock, err := lock(dir)
	if err != nil {
		return m, "", err
	}
	defer unlock()
	verdict, err := nextVerdict(dir)
	if err != nil {
		return m, "", err
	}
	if err := add(filepath.Join(dir, attemptsFile), Attempt{os.Getpid(), m.DeliveryID, verdict, now}); err != nil {
		return m, "", err
	}
	if verdict != Accepted {
		return m, verdict, nil
	}
	kept, err := Messages(dir)
	if err != nil {
		return m, "", err
	}
	for _, k := range kept {
		if k.IdempotencyKey == m.IdempotencyKey {
			return k, Accepted, nil
		}
	}
	m.At = now
	m.AcceptanceID = fmt.Sprintf("inbox-%d", len(kept)+1)
	return m, Accepted, add(filepath.Join(dir, messagesFile), m)
}

// Messages reads what was accepted, oldest first; an inbox that nobody wrote to
// yet is empty.
func Messages(dir string) ([]Message, error) { return read[Message](filepath.Join(dir, messagesFile)) }

// Attempts reads every start of the executable, oldest first.
func Attempts(dir string) ([]Attempt, error) { return read[Attempt](filepath.Join(dir, attemptsFile)) }

// SetScript gives the verdicts of the next attempts; after them all is accepted.
func SetScript(dir string, next ...Verdict) error {
	unlock, err := lock(dir)
	if err != nil {
		return err
	}
	defer unlock()
	var b strings.Builder
	for _, v := range next {
		fmt.Fprintln(&b, v)
	}
	if err := os.WriteFile(filepath.Join(dir, scriptFile), []byte(b.String()), 0o600); err != nil {
		return fmt.Errorf("write the inbox's script: %w", err)
	}
	return nil
}

// Await polls until ok says of the messages that they are enough.
func Await(ctx context.Context, dir string, ok func([]Message) bool) ([]Message, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		messages, err := Messages(dir)
		if err != nil {
			return nil, err
		}
		if ok(messages) {
			return messages, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return messages, fmt.Errorf("wait for a callback: %w; %d have arrived", ctx.Err(), len(messages))
		}
	}
}

// nextVerdict takes the first line of the script; the lock is held.
func nextVerdict(dir string) (Verdict, error) {
	path := filepath.Join(dir, scriptFile)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Accepted, nil
	}
	if err != nil {
		return "", fmt.Errorf("read the inbox's script: %w", err)
	}
	first, rest, _ := strings.Cut(string(raw), "\n")
	if first == "" {
		return Accepted, nil
	}
	if err := os.WriteFile(path, []byte(rest), 0o600); err != nil {
		return "", fmt.Errorf("write the inbox's script: %w", err)
	}
	v := Verdict(first)
	if !slices.Contains(verdicts, v) {
		return "", fmt.Errorf("the inbox's script says %q, want one of %v", first, verdicts)
	}
	return v, nil
}

func lock(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the inbox: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock the inbox: %w", err)
	}
	return func() { _ = f.Close() }, nil // closing releases
}

// add appends one line and brings it to the disk.
func add(path string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write to the inbox: %w", err)
	}
	_, err = f.Write(append(raw, '\n'))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write to the inbox: %w", err)
	}
	return nil
}

// read gives the whole lines; a last line without an end is being written.
func read[T any](path string) ([]T, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the inbox: %w", err)
	}
	raw = raw[:bytes.LastIndexByte(raw, '\n')+1]
	var out []T
	lines := bufio.NewScanner(bytes.NewReader(raw))
	lines.Buffer(nil, 8*MaxBody)
	for lines.Scan() {
		var v T
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			return nil, fmt.Errorf("read the inbox: line %d: %w", len(out)+1, err)
		}
		out = append(out, v)
	}
	return out, lines.Err()
}
