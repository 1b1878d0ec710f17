package service

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// How long daily log files are kept.
const keepDays = 14

const dayForm = "2006-01-02"

var dailyName = regexp.MustCompile(`^runtime-(\d{4}-\d{2}-\d{2})\.ndjson$`)

// daily writes to one file per UTC day. Several programs append to the same
// file: each line is one write in append mode.
type daily struct {
	dir    string
	now    func() time.Time
	mu     sync.Mutex // close may come while a stuck line is still being written
	day    string
	file   *os.File
	closed bool
}

func openDaily(dir string, now func() time.Time) (*daily, error) {
	if err := EnsurePrivateDir(dir); err != nil {
		return nil, err
	}
	d := &daily{dir: dir, now: now}
	if err := d.turn(); err != nil {
		return nil, err
	}
	return d, nil
}

// Write appends one line to the file of today.
func (d *daily) Write(line []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return 0, os.ErrClosed
	}
	if err := d.turn(); err != nil {
		return 0, err
	}
	return d.file.Write(line)
}

func (d *daily) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.file.Close()
}

// turn opens the file of today and, on a new day, removes the old ones.
func (d *daily) turn() error {
	day := d.now().UTC().Format(dayForm)
	if day == d.day && d.file != nil {
		return nil
	}
	path := filepath.Join(d.dir, "runtime-"+day+".ndjson")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("open runtime log: %w", err)
	}
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		f.Close()
		return fmt.Errorf("open runtime log: %s is not a regular file", path)
	}
	if d.file != nil {
		d.file.Close()
	}
	d.day, d.file = day, f
	d.prune()
	return nil
}

// prune removes files of days before the last keepDays. The name decides, not
// the file's time.
func (d *daily) prune() {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return
	}
	oldest := d.now().UTC().AddDate(0, 0, -keepDays).Format(dayForm)
	for _, e := range entries {
		if m := dailyName.FindStringSubmatch(e.Name()); m != nil && m[1] < oldest {
			_ = os.Remove(filepath.Join(d.dir, e.Name()))
		}
	}
}
