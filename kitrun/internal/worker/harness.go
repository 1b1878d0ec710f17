package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"drawbridge/shared/store"
)

// Bounds of the look at an image.
const (
	harnessWait   = 30 * time.Second
	harnessOutput = 4 << 10
)

// harness is what an image says of its codex.
type harness struct{ version, digest string }

// harnessScript prints version and digest. Standard error is dropped: codex warns
// there of things that do not matter here.
const harnessScript = `codex --version 2>/dev/null | head -n 1; sha256sum "$(readlink -f "$(command -v codex)")"`

var (
	versionForm = regexp.MustCompile(`^[\x21-\x7e][\x20-\x7e]{0,127}$`)
	digestForm  = regexp.MustCompile(`^([0-9a-f]{64}) `)
)

// harness gives version and digest of the image's codex: from the Store, since an
// image never changes, else from a look into the image. Nothing is said that was
// not seen, and a run that somebody wants to end does not wait for it.
func (r *run) harness(ctx context.Context) harness {
	known, ok, err := r.Store.WorkerImage(context.Background(), r.Image)
	if err == nil && ok {
		return harness{known.HarnessVersion, known.HarnessDigest}
	}
	if ctx.Err() != nil {
		return harness{}
	}
	h, err := r.lookInside(ctx)
	if err == nil {
		err = r.Store.SaveWorkerImage(context.Background(), store.WorkerImage{Image: r.Image, HarnessVersion: h.version, HarnessDigest: h.digest})
	}
	if err != nil {
		r.Log.Warn("the image's codex was not identified", "image", r.Image, "err", err)
	}
	return h
}

// lookInside runs the script in a container of its own: the same locks, no
// network, no mounts, no capability.
func (r *run) lookInside(ctx context.Context) (h harness, err error) {
	calls, stop := context.WithTimeout(context.WithoutCancel(ctx), harnessWait)
	defer stop()
	spec := r.locked(r.Store.ID())
	spec.Name = namePrefix + r.InvocationID + "-image"
	spec.Entrypoint = []string{"sh", "-c", harnessScript}
	spec.Env = []string{"CODEX_HOME=" + inCodexHome, "HOME=" + inTmp}
	spec.WorkingDir = "/"
	if !r.id.native {
		spec.User = ""
	}
	id, err := r.Engine.Create(calls, spec)
	if err != nil {
		return h, fmt.Errorf("make a container: %w", err)
	}
	defer func() { err = errors.Join(err, removeVerified(r.Engine, id)) }()
	seen, err := r.Engine.Inspect(calls, id)
	if err != nil {
		return h, fmt.Errorf("inspect it: %w", err)
	}
	if err := differs(seen, spec, r.id); err != nil {
		return h, err
	}
	out, err := output(ctx, calls, r.Engine, id)
	if err != nil {
		return h, err
	}
	return parseHarness(out)
}

// parseHarness reads the two lines of the script.
func parseHarness(out []byte) (h harness, err error) {
	version, rest, _ := strings.Cut(string(out), "\n")
	version = strings.TrimPrefix(strings.TrimSpace(version), "codex-cli ")
	m := digestForm.FindStringSubmatch(rest)
	if m == nil || !versionForm.MatchString(version) {
		return h, errors.New("its codex gives no version, or has no digest")
	}
	return harness{version, "sha256:" + m[1]}, nil
}

// output runs a container without input to its end, at most until ctx ends, and
// gives its stdout.
func output(ctx, calls context.Context, e Engine, id string) ([]byte, error) {
	streams, err := e.Attach(calls, id)
	if err != nil {
		return nil, fmt.Errorf("attach to it: %w", err)
	}
	defer streams.Close()
	waiting, stopWaiting := context.WithTimeout(ctx, harnessWait)
	defer stopWaiting()
	exits, err := e.Wait(waiting, id)
	if err != nil {
		return nil, fmt.Errorf("wait for it: %w", err)
	}
	if err := e.Start(calls, id); err != nil {
		return nil, fmt.Errorf("start it: %w", err)
	}
	var out bounded
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = streams.Split(&out, &bounded{})
	}()
	exit := <-exits
	if exit.Err == nil {
		select {
		case <-done:
		case <-time.After(drainWait):
		}
	}
	streams.Close()
	<-done
	if exit.Err != nil {
		return nil, fmt.Errorf("wait for it: %w", exit.Err)
	}
	if exit.Status != 0 {
		return nil, fmt.Errorf("it exited with %d", exit.Status)
	}
	return out.Bytes(), nil
}

// bounded keeps the first harnessOutput bytes.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if room := harnessOutput - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
