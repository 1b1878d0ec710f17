package execution

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/shared/strictjson"
)

// Bounds of a request (kit §6).
const (
	maxRequest     = 16 << 20
	maxDepth       = 200
	defaultTimeout = 300 * time.Second
	maxTimeout     = 86400 * time.Second
)

// schema and version of a request.
const (
	requestSchema  = "kontour.kit.execution_request"
	requestVersion = "1.0"
)

// request is what kitrun reads of a request; the rest is the kit's.
type request struct {
	path        string // absolute
	digest      string // sha256:…
	workspace   string // "": none, or no string
	wantsEngine bool   // it names an image
	timeout     time.Duration
}

// readRequest reads and checks the request of a run of the kit in kitRoot.
func readRequest(path, kitID, kitRoot string) (request, error) {
	bad := func(format string, args ...any) (request, error) {
		f := fault.New(fault.KitRequest, format, args...)
		f.Message = "read the request: " + f.Message
		return request{}, f.WithHint("nothing was run")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return bad("%w", err)
	}
	data, err := readRegular(abs, maxRequest)
	if err != nil {
		return bad("%w", err)
	}
	tree, err := strictjson.Parse(data, strictjson.Limits{MaxBytes: maxRequest, MaxDepth: maxDepth})
	if err != nil {
		return bad("%w", err)
	}
	doc, ok := tree.(map[string]any)
	if !ok {
		return bad("it is no JSON object")
	}
	sum := sha256.Sum256(data)
	r := request{path: abs, digest: "sha256:" + hex.EncodeToString(sum[:]), timeout: defaultTimeout}
	for _, want := range []struct{ member, value string }{
		{"schema", requestSchema}, {"version", requestVersion}, {"kit_id", kitID},
	} {
		if got, _ := doc[want.member].(string); got != want.value {
			return bad("%s is not %q", want.member, want.value)
		}
	}
	if root, ok := doc["source_root"]; ok {
		text, _ := root.(string)
		if !sameDirectory(text, kitRoot) {
			return bad("source_root is not the installed kit, %s", kitRoot)
		}
	}
	r.workspace, _ = doc["workspace"].(string)
	if sandbox, ok := doc["engine_sandbox"].(map[string]any); ok {
		r.wantsEngine = sandbox["image"] != nil
	}
	if execution, ok := doc["execution"].(map[string]any); ok {
		if asked, ok := execution["timeout_s"]; ok {
			number, _ := asked.(strictjson.Number)
			seconds, ok := number.Float64()
			if !ok || seconds <= 0 || seconds > maxTimeout.Seconds() {
				return bad("execution.timeout_s is not more than 0 and at most %v", maxTimeout.Seconds())
			}
			r.timeout = time.Duration(seconds * float64(time.Second))
		}
	}
	return r, nil
}

// changed reports whether the request is another one than was read.
func (r request) changed() bool {
	data, err := readRegular(r.path, maxRequest)
	sum := sha256.Sum256(data)
	return err != nil || "sha256:"+hex.EncodeToString(sum[:]) != r.digest
}

// sameDirectory compares where two paths lead.
func sameDirectory(a, b string) bool {
	if !filepath.IsAbs(a) {
		return false
	}
	x, err := filepath.EvalSymlinks(a)
	if err != nil {
		return false
	}
	y, err := filepath.EvalSymlinks(b)
	return err == nil && x == y
}

// readRegular reads a regular file of at most most bytes; it waits for no writer.
func readRegular(path string, most int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fault.New(fault.KitRequest, "it is no regular file")
	case info.Size() > most:
		return nil, fault.New(fault.KitRequest, "it has %d bytes, more than %d", info.Size(), most)
	}
	return io.ReadAll(io.LimitReader(f, most))
}
