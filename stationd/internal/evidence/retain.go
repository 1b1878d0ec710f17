package evidence

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// RetainEvery is the pause between two looks at what is old.
const RetainEvery = time.Hour

// purgesMost bounds what one look purges; the rest waits for the next.
const purgesMost = 1000

// LogDir is where the log of an attempt stands in a state directory.
func LogDir(stateDir, stationID string, attempt int64) string {
	return filepath.Join(logRoot(stateDir), stationID, strconv.FormatInt(attempt, 10))
}

func logRoot(stateDir string) string { return filepath.Join(stateDir, "logs") }

// Retention removes what has been kept long enough.
type Retention struct {
	Store    *store.Store
	Lease    func() *store.Lease // of the acting stationd; nil while another acts
	StateDir string
	Every    time.Duration    // 0: RetainEvery
	Now      func() time.Time // nil: the clock
	Log      *slog.Logger     // nil discards
}

// Retain looks at once and then every RetainEvery, until ctx ends. Logs go LogKeep after
// the end of their attempt, whole attempts, with events and evidence, EvidenceKeep
// after it. What fails is tried again next time.
func (r Retention) Retain(ctx context.Context) error {
	if r.Log == nil {
		r.Log = slog.New(slog.DiscardHandler)
	}
	if r.Every == 0 {
		r.Every = RetainEvery
	}
	tick := time.NewTicker(r.Every)
	defer tick.Stop()
	for {
		if err := r.Sweep(ctx); err != nil && ctx.Err() == nil {
			r.Log.Warn("old logs or evidence stay for now", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Sweep is one look.
func (r Retention) Sweep(ctx context.Context) error {
	l := r.Lease()
	if l == nil {
		return nil
	}
	var failed error
	for range purgesMost {
		more, err := r.Store.PurgeAttempt(ctx, l)
		if err != nil {
			failed = err
		}
		if err != nil || !more {
			break
		}
	}
	return errors.Join(failed, r.logs(ctx))
}

// logs removes logs whose time is over.
func (r Retention) logs(ctx context.Context) error {
	root := logRoot(r.StateDir)
	stations, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, st := range stations {
		dir := filepath.Join(root, st.Name())
		attempts, readErr := os.ReadDir(dir)
		err = errors.Join(err, readErr)
		left := len(attempts)
		for _, a := range attempts {
			number, parseErr := strconv.ParseInt(a.Name(), 10, 64)
			if parseErr != nil {
				continue // not ours
			}
			old, oldErr := r.old(ctx, filepath.Join(dir, a.Name()), st.Name(), number)
			if oldErr != nil {
				return errors.Join(err, oldErr)
			}
			if !old {
				continue
			}
			if removeErr := os.RemoveAll(filepath.Join(dir, a.Name())); removeErr != nil {
				err = errors.Join(err, removeErr)
				continue
			}
			left--
		}
		if left == 0 && readErr == nil {
			_ = os.Remove(dir) // a new attempt may just have made its log in it
		}
	}
	return err
}

// old reports whether a log's time is over: LogKeep after the end of its attempt, or
// after its last byte when no such attempt is known, for it may be another Store's.
func (r Retention) old(ctx context.Context, dir, stationID string, number int64) (bool, error) {
	a, err := r.Store.StationAttempt(ctx, stationID, number)
	end := time.UnixMilli(a.EndedAt)
	if fault.Is(err, fault.NotFound) {
		end, err = lastWrite(dir)
	} else if a.Live() {
		return false, err
	}
	now := time.Now
	if r.Now != nil {
		now = r.Now
	}
	return err == nil && now().Sub(end) > LogKeep, err
}

func lastWrite(dir string) (at time.Time, err error) {
	segments, err := segmentsOf(dir)
	if err != nil {
		return at, err
	}
	for _, s := range segments {
		if info, err := os.Stat(s.path); err == nil && info.ModTime().After(at) {
			at = info.ModTime()
		}
	}
	return at, nil
}
