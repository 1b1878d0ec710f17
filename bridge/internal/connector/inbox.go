package connector

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/service"
	"drawbridge/shared/strictjson"
)

// Files of an inbox. A Host reads messages.jsonl and remembers how far; it may
// move the file away while it holds the lock.
const (
	MessagesFile = "messages.jsonl"
	lockFile     = "lock"

	maxInbox = 64 << 20 // bytes of messages.jsonl; a Host that never reads is told to
	lockPoll = 20 * time.Millisecond
)

// Letter is one line of an inbox.
type Letter struct {
	AcceptanceID   string `json:"acceptance_id"`
	ReceivedAt     string `json:"received_at"`
	Session        string `json:"session"`
	DeliveryID     string `json:"delivery_id"`
	MessageID      string `json:"message_id"`
	IdempotencyKey string `json:"idempotency_key"`
	Body           string `json:"body"`
}

// An Inbox is a directory (0700) with one file (0600) of messages. A message is
// one line, written at once and synced before it is acknowledged; its key makes a
// second delivery find the first. A line that a crash cut was never acknowledged
// and is removed by the next delivery.
type Inbox struct {
	Dir string
	Now func() time.Time
}

// Deliver keeps m unless its key is there.
func (b Inbox) Deliver(ctx context.Context, m Message) Verdict {
	if !filepath.IsAbs(b.Dir) {
		return refuse(Retry, "the inbox %q is not an absolute path", b.Dir)
	}
	if err := service.EnsurePrivateDir(b.Dir); err != nil {
		return refuse(Retry, "%v", err)
	}
	unlock, err := b.lock(ctx)
	if err != nil {
		return refuse(Retry, "lock the inbox: %v", err)
	}
	defer unlock()
	f, made, err := openOwn(filepath.Join(b.Dir, MessagesFile))
	if err != nil {
		return refuse(Retry, "open the inbox: %v", err)
	}
	defer f.Close()
	end, found, err := look(f, m)
	switch {
	case err != nil:
		return refuse(Retry, "read the inbox: %v", err)
	case found != nil && !found.is(m):
		return refuse(Rejected, "another message with this idempotency key is in the inbox")
	case found != nil:
		if err := f.Sync(); err != nil { // the first attempt may have died before it
			return refuse(Unknown, "sync the inbox: %v", err)
		}
		return Verdict{Word: Accepted, AcceptanceID: found.AcceptanceID}
	}
	letter := Letter{acceptance(m), b.Now().UTC().Format(time.RFC3339Nano), m.Session, m.DeliveryID, m.MessageID, m.IdempotencyKey, m.Body}
	line := letter.line()
	if end+int64(len(line)) > maxInbox {
		return refuse(Retry, "the inbox is full: move %s away", MessagesFile)
	}
	return b.append(f, end, line, letter, made)
}

// append writes the line at end. A failure before the sync takes it back; where
// that fails, too, nobody knows.
func (b Inbox) append(f *os.File, end int64, line []byte, letter Letter, made bool) Verdict {
	if err := f.Truncate(end); err != nil {
		return refuse(Retry, "repair the inbox: %v", err)
	}
	_, err := f.WriteAt(line, end)
	if err == nil {
		err = f.Sync()
	}
	if err == nil && made {
		err = syncDir(b.Dir)
	}
	if err == nil {
		return Verdict{Word: Accepted, AcceptanceID: letter.AcceptanceID}
	}
	if undo := errors.Join(f.Truncate(end), f.Sync()); undo != nil {
		return refuse(Unknown, "write the inbox: %v", errors.Join(err, undo))
	}
	return refuse(Retry, "write the inbox: %v", err)
}

// acceptance is the same id for every attempt of one delivery.
func acceptance(m Message) string {
	sum := sha256.Sum256([]byte("drawbridge.inbox.v1\x00" + m.IdempotencyKey + "\x00" + m.DeliveryID))
	return "inbox-" + hex.EncodeToString(sum[:8])
}

func (l Letter) line() []byte {
	return append(strictjson.Ordered(
		"acceptance_id", l.AcceptanceID, "received_at", l.ReceivedAt, "session", l.Session,
		"delivery_id", l.DeliveryID, "message_id", l.MessageID, "idempotency_key", l.IdempotencyKey, "body", l.Body), '\n')
}

// is reports whether l is m. The line holds the body with U+FFFD for what was not
// UTF-8.
func (l Letter) is(m Message) bool {
	return l.Session == m.Session && l.DeliveryID == m.DeliveryID && l.MessageID == m.MessageID &&
		l.Body == string(bytes.ToValidUTF8([]byte(m.Body), []byte("\uFFFD")))
}

// look gives the end of the last whole line and the letter with m's key. Lines
// that are not ours are passed over.
func look(f *os.File, m Message) (end int64, found *Letter, err error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0, nil, err
	}
	key := strictjson.Ordered("idempotency_key", m.IdempotencyKey)
	key = key[1 : len(key)-1]
	r := bufio.NewReaderSize(f, 1<<16)
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return end, found, nil // what is left was cut by a crash
		}
		if err != nil {
			return 0, nil, err
		}
		end += int64(len(line))
		if found != nil || !bytes.Contains(line, key) {
			continue
		}
		var l Letter
		if json.Unmarshal(line, &l) == nil && l.IdempotencyKey == m.IdempotencyKey {
			found = &l
		}
	}
}

// Letters reads an inbox, oldest first; one that nobody wrote to is empty.
func Letters(dir string) ([]Letter, error) {
	data, err := os.ReadFile(filepath.Join(dir, MessagesFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read an inbox: %w", err)
	}
	whole := data[:bytes.LastIndexByte(data, '\n')+1]
	var out []Letter
	for line := range bytes.Lines(whole) {
		var l Letter
		if err := json.Unmarshal(line, &l); err != nil {
			return out, fmt.Errorf("read an inbox: line %d: %w", len(out)+1, err)
		}
		out = append(out, l)
	}
	return out, nil
}

// lock excludes other deliveries and a Host that moves the file.
func (b Inbox) lock(ctx context.Context) (unlock func(), err error) {
	f, _, err := openOwn(filepath.Join(b.Dir, lockFile))
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // closing frees it
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, err
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, errors.New("another program holds it")
		case <-tick.C:
		}
	}
}

// openOwn opens an ordinary file of this user with mode 0600, and makes it where
// it is absent. A link is not followed.
func openOwn(path string) (f *os.File, made bool, err error) {
	const flags = os.O_RDWR | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	f, err = os.OpenFile(path, flags, 0)
	if errors.Is(err, os.ErrNotExist) {
		made = true
		f, err = os.OpenFile(path, flags|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, os.ErrExist) { // another delivery was first
			made = false
			f, err = os.OpenFile(path, flags, 0)
		}
	}
	if err != nil {
		return nil, false, err
	}
	var st unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &st)
	switch {
	case err != nil:
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		err = errors.New("it is not an ordinary file")
	case int(st.Uid) != os.Geteuid():
		err = fmt.Errorf("it belongs to uid %d", st.Uid)
	case st.Mode&0o077 != 0:
		err = f.Chmod(0o600)
	}
	if err != nil {
		_ = f.Close()
		return nil, false, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return f, made, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
