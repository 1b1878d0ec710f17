package worker

import (
	"context"
	"io"

	"drawbridge/shared/redact"
)

// ForkDigest is forkDigest.
func ForkDigest(ctx context.Context, root string) (string, error) { return forkDigest(ctx, root) }

// CompareUTF16 is compareUTF16.
func CompareUTF16(a, b string) int { return compareUTF16(a, b) }

// ParseHarness is parseHarness.
func ParseHarness(out []byte) (version, digest string, err error) {
	h, err := parseHarness(out)
	return h.version, h.digest, err
}

// Mounted is a line of the table of mounts.
type Mounted struct{ FS, Root, At string }

// ParseMountTable is parseMountTable.
func ParseMountTable(data []byte) (out []Mounted) {
	for _, m := range parseMountTable(data) {
		out = append(out, Mounted{m.fs, m.root, m.at})
	}
	return out
}

// SpecOf is the container that options come to in the network none.
func SpecOf(o Options, d Deps) (Spec, error) {
	j, err := check(o, d)
	if err != nil {
		return Spec{}, err
	}
	return j.spec("STORE", network{name: NetworkNone, hosts: []string{hostName + ":127.0.0.1"}, entry: "exec "}), nil
}

// Keep writes one file of an invocation into a directory.
func Keep(dir, invocation, suffix string, from io.Reader) (digest string, err error) {
	a, err := openArtifacts(dir, invocation)
	if err != nil {
		return "", err
	}
	defer a.Close()
	return a.keep(suffix, from)
}

// Capture is capture.
type Capture struct{ *capture }

// NewCapture is newCapture.
func NewCapture(dir string, capability redact.Secret, over func()) (Capture, error) {
	c, err := newCapture(dir, redactor(capability), over, nil)
	return Capture{c}, err
}

// End is end.
func (c Capture) End(most int64) (io.Reader, error) { return c.end(most) }

// ErrNoContainer is how an engine says that there is none.
var ErrNoContainer = errNoContainer
