package launch

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"drawbridge/shared/fault"
)

const (
	// maxArtifact bounds a harness from outside.
	maxArtifact  = 512 << 20
	fetchTime    = 10 * time.Minute
	maxRedirects = 5
	artifactName = "artifact"
)

// Obtained is a verified harness: a private file that nobody writes any more.
type Obtained struct {
	Path   string // in the directory that Obtain was given
	SHA256 string
	Bytes  int64
	KeyID  string // of the signature, "" without one
}

// Pinned refuses an artifact that nothing proves, before it is fetched.
func Pinned(a Artifact) error {
	if a.SHA256 == "" && a.Minisign == nil {
		return fault.New(fault.ArtifactUnpinned, "check the harness: it has neither sha256 nor minisign").
			WithHint("pin the digest that was reviewed, or a key and a signature")
	}
	if a.Minisign != nil {
		return checkMinisign(*a.Minisign)
	}
	return nil
}

// Obtain copies an artifact into dir, a private directory, while hashing it, and
// verifies it there. What is verified is the copy; the shim opens that once,
// compares its digest again and executes the descriptor, so that no other file can
// take its place. Nothing is left when it fails. client may be nil.
func Obtain(ctx context.Context, a Artifact, dir string, client *http.Client) (Obtained, error) {
	if err := Pinned(a); err != nil {
		return Obtained{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	source, err := open(ctx, a, client)
	if err != nil {
		return Obtained{}, refusedArtifact("%w", err)
	}
	defer source.Close()

	path := filepath.Join(dir, artifactName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return Obtained{}, refusedArtifact("%w", err)
	}
	got, err := take(f, source, a)
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(path)
		return Obtained{}, err
	}
	got.Path = path
	return got, nil
}

// take fills and verifies f.
func take(f *os.File, source io.Reader, a Artifact) (Obtained, error) {
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), io.LimitReader(source, maxArtifact+1))
	switch {
	case err != nil:
		return Obtained{}, refusedArtifact("%w", err)
	case n > maxArtifact:
		return Obtained{}, refusedArtifact("it has more than %d bytes", int64(maxArtifact))
	case n == 0:
		return Obtained{}, refusedArtifact("it is empty")
	}
	got := Obtained{SHA256: hex.EncodeToString(sum.Sum(nil)), Bytes: n}
	if a.SHA256 != "" && subtle.ConstantTimeCompare([]byte(got.SHA256), []byte(a.SHA256)) != 1 {
		return Obtained{}, fault.New(fault.IntegrityFailed, "verify the harness: its digest is %s, not the pinned one", got.SHA256).
			WithHint("review what changed; then pin the new digest")
	}
	if a.Minisign != nil {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return Obtained{}, refusedArtifact("%w", err)
		}
		if got.KeyID, err = verifyMinisign(*a.Minisign, f); err != nil {
			return Obtained{}, err
		}
	}
	if err := errors.Join(f.Chmod(0o500), f.Sync()); err != nil {
		return Obtained{}, refusedArtifact("%w", err)
	}
	return got, nil
}

// open begins to read an artifact.
func open(ctx context.Context, a Artifact, client *http.Client) (io.ReadCloser, error) {
	if a.Path != "" {
		f, err := os.OpenFile(a.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return nil, errors.New("the file cannot be opened") // no local path in what is kept
		}
		if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
			f.Close()
			return nil, errors.New("it is no regular file")
		}
		return f, nil
	}
	if client == nil {
		client = &http.Client{}
	}
	c := *client
	c.CheckRedirect = func(r *http.Request, via []*http.Request) error {
		if r.URL.Scheme != "https" {
			return errors.New("redirected to another scheme than https")
		}
		if len(via) > maxRedirects {
			return fmt.Errorf("redirected more than %d times", maxRedirects)
		}
		return nil
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL, nil)
	if err != nil || request.URL.Scheme != "https" || request.URL.Host == "" || request.URL.User != nil {
		return nil, errors.New("the address is not https without user information")
	}
	response, err := c.Do(request)
	if err != nil {
		return nil, errors.Unwrap(err) // what wraps it quotes the address, which may be signed
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, fmt.Errorf("the server answers %d", response.StatusCode)
	}
	if response.ContentLength > maxArtifact {
		response.Body.Close()
		return nil, fmt.Errorf("it has %d bytes", response.ContentLength)
	}
	return response.Body, nil
}

func refusedArtifact(format string, args ...any) error {
	return fault.New(fault.ArtifactRefused, "fetch the harness: "+format, args...)
}
