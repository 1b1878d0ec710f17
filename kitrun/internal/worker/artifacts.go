package worker

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
)

// Suffixes of the files of one invocation.
const (
	contextSuffix = ".context.json"
	stdinSuffix   = ".stdin.txt"
	stdoutSuffix  = ".stdout.jsonl"
	stderrSuffix  = ".stderr.log"
	receiptSuffix = ".receipt.json"
)

var suffixes = []string{contextSuffix, stdinSuffix, stdoutSuffix, stderrSuffix, receiptSuffix}

// CapabilityWord stands in kept bytes where the capability was.
const CapabilityWord = "[redacted-capability]"

const fileMode = 0o400

// artifacts is the directory of the records, held open so that no rename leads
// anywhere else.
type artifacts struct {
	dir  *os.File
	name string // invocation id
	made []string
}

// openArtifacts opens the directory and refuses an invocation that left a file.
func openArtifacts(dir, invocationID string) (*artifacts, error) {
	f, err := os.OpenFile(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, invalid("artifactRoot", "%w", bare(err))
	}
	a := &artifacts{dir: f, name: invocationID}
	for _, suffix := range suffixes {
		var st unix.Stat_t
		err := unix.Fstatat(int(f.Fd()), a.name+suffix, &st, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		f.Close()
		if err != nil {
			return nil, invalid("artifactRoot", "%w", err)
		}
		return nil, fault.New(fault.OutputExists, "check the artifact root: %s exists", invocationID+suffix).
			WithHint("every run needs an invocation id of its own; nothing was run and nothing is overwritten")
	}
	return a, nil
}

func (a *artifacts) Close() error { return a.dir.Close() }

// keep writes one file, once, and gives the digest of its bytes. It has its name only
// when it is whole and on disk, so that no crash leaves half of one.
func (a *artifacts) keep(suffix string, from io.Reader) (digest string, err error) {
	name := a.name + suffix
	defer func() {
		if err != nil {
			err = fault.New(fault.ReceiptUnwritten, "write %s: %w", name, bare(err))
		}
	}()
	dir, part := int(a.dir.Fd()), "."+name
	fd, err := unix.Openat(dir, part, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, fileMode)
	if err != nil {
		return "", err
	}
	// The umask may have taken bits away, never added any.
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(f, sum), from)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = unix.Renameat2(dir, part, dir, name, unix.RENAME_NOREPLACE)
	}
	if errors.Is(err, unix.EINVAL) { // a file system that cannot do that
		if err = unix.Linkat(dir, part, dir, name, 0); err == nil {
			err = unix.Unlinkat(dir, part, 0)
		}
	}
	if err != nil { // half a file proves nothing, and the receipt may need the room
		_ = unix.Unlinkat(dir, part, 0)
		return "", err
	}
	a.made = append(a.made, name)
	return digestOf(sum.Sum(nil)), nil
}

// discard takes back what was written for a container that never started.
func (a *artifacts) discard() {
	for _, name := range a.made {
		_ = unix.Unlinkat(int(a.dir.Fd()), name, 0)
	}
	a.made = nil
}

// receipt writes the receipt, once the names of all other files are on disk.
func (a *artifacts) receipt(r Receipt) (digest string, err error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(r); err != nil {
		return "", fmt.Errorf("encode the receipt: %w", err)
	}
	if err := a.dir.Sync(); err != nil {
		return "", fault.New(fault.ReceiptUnwritten, "sync the artifact root: %w", bare(err))
	}
	digest, err = a.keep(receiptSuffix, &b)
	if err == nil {
		if err = a.dir.Sync(); err != nil {
			err = fault.New(fault.ReceiptUnwritten, "sync the artifact root: %w", bare(err))
		}
	}
	return digest, err
}

func digestOf(sum []byte) string { return "sha256:" + hex.EncodeToString(sum) }

func digestBytes(data []byte) string {
	sum := sha256.Sum256(data)
	return digestOf(sum[:])
}

// capture takes one stream of output, redacted, up to maxOutput bytes. They go to a
// file without a name, so that neither a worker's flood nor a crash leaves anything:
// not in memory, not on disk.
type capture struct {
	stream *redact.Stream
	file   *os.File
	over   func()       // called once, at the first byte too many
	line   func([]byte) // sees the redacted bytes; may be nil

	mu    sync.Mutex // the last look and a stream that did not end
	taken int64
	full  bool
	shut  bool
	err   error
}

func newCapture(dir string, red *redact.Redactor, over func(), line func([]byte)) (*capture, error) {
	f, err := nameless(dir)
	if err != nil {
		return nil, fmt.Errorf("make room for output: %w", bare(err))
	}
	c := &capture{file: f, over: over, line: line}
	c.stream = red.Stream(writerFunc(c.spool))
	return c, nil
}

// nameless opens a file that is gone when it is closed.
func nameless(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return f, nil
	}
	// A file system without such files.
	if f, err = os.CreateTemp(dir, ".output-"); err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// Write never fails and never blocks: what is too much is dropped, so that the
// engine can go on until the kill takes effect.
func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(p)
	if c.shut || c.full {
		return n, nil
	}
	if room := maxOutput - c.taken; int64(len(p)) > room {
		p, c.full = p[:room], true
	}
	c.taken += int64(len(p))
	if _, err := c.stream.Write(p); err != nil && c.err == nil {
		c.err = err
	}
	if c.full {
		c.over()
	}
	return n, nil
}

// spool is what the redacting stream writes to.
func (c *capture) spool(p []byte) (int, error) {
	if c.line != nil {
		c.line(p)
	}
	return c.file.Write(p)
}

// end takes no more, and gives a reader of the last most bytes; all with most < 0.
func (c *capture) end(most int64) (io.Reader, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.shut {
		c.shut = true
		if err := c.stream.Close(); err != nil && c.err == nil {
			c.err = err
		}
	}
	if c.err != nil {
		return nil, fault.New(fault.ReceiptUnwritten, "keep the worker's output: %w", bare(c.err))
	}
	size, err := c.file.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	from := int64(0)
	if most >= 0 && size > most {
		from = size - most
	}
	return io.NewSectionReader(c.file, from, size-from), nil
}

func (c *capture) Close() error { return c.file.Close() }

// redactor finds the capability in every spelling.
func redactor(capability redact.Secret) *redact.Redactor {
	r := redact.New(redact.Options{Word: CapabilityWord, KnownOnly: true})
	r.Learn(capability.Reveal())
	return r
}
