package broker

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/brokerd/internal/upstream"
	"drawbridge/shared/fault"
	"drawbridge/shared/secretfile"
	"drawbridge/shared/strictjson"
)

// Bounds of a credential file and of the secret in it (broker §2).
const (
	maxCredentialFile = 256 << 10
	minSecret         = 16
	maxSecret         = 16 << 10
	expiryMargin      = 60 * time.Second
)

// credential is what one file holds. The secret's bytes are overwritten when the
// last grant that uses them has ended; copies made for a request live as long as
// that request.
type credential struct {
	kind    string // upstream.APIKey, upstream.AccessToken
	secret  []byte
	account string
	expires int64 // Unix seconds of a JWT; 0: unknown
	file    secretfile.State
	sum     [sha256.Size]byte
}

func (c *credential) wipe() { clear(c.secret) }

// expired reports whether the token ends too soon for a run to begin.
func (c *credential) expired(now time.Time) bool {
	return c.expires != 0 && now.Add(expiryMargin).Unix() >= c.expires
}

// CanonicalPath makes the path of a credential file absolute and resolves its
// directory. The file itself may be no link, which the reader checks.
func CanonicalPath(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fault.New(fault.Usage, "find the credential file: %w", err)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return "", fault.New(fault.CredentialUnavailable, "find the credential file: its directory cannot be resolved")
	}
	return filepath.Join(dir, filepath.Base(abs)), nil
}

// credentialFile is what the file is called in messages.
const credentialFile = "credential file"

// readCredential checks and reads a credential file, all on one descriptor. No
// error holds anything of its content.
func readCredential(path string) (*credential, error) {
	data, state, err := secretfile.Read(credentialFile, path, maxCredentialFile)
	defer clear(data)
	if f, ok := fault.As(err); ok && f.Hint == "" {
		return nil, f.WithHint(contentHint)
	}
	if err != nil {
		return nil, err
	}
	c, err := parseCredential(data)
	if err != nil {
		return nil, err
	}
	c.file, c.sum = state, sha256.Sum256(data)
	return c, nil
}

// parseCredential takes the secret out of the text of a credential file.
func parseCredential(data []byte) (*credential, error) {
	tree, err := strictjson.Parse(data, strictjson.Limits{MaxBytes: maxCredentialFile})
	if err != nil {
		return nil, unavailable("it is not one strict JSON document")
	}
	object, ok := tree.(map[string]any)
	if !ok {
		return nil, unavailable("it is not a JSON object")
	}
	c := &credential{}
	if key, _ := object["OPENAI_API_KEY"].(string); key != "" {
		c.kind, c.secret = upstream.APIKey, []byte(key)
	} else {
		tokens, _ := object["tokens"].(map[string]any)
		token, _ := tokens["access_token"].(string)
		if token == "" {
			return nil, unavailable("it holds neither OPENAI_API_KEY nor tokens.access_token")
		}
		c.kind, c.secret = upstream.AccessToken, []byte(token)
		c.account, _ = tokens["account_id"].(string)
		c.expires = jwtExpiry(token)
	}
	if !fitsHeader(c.secret, minSecret) {
		return nil, unavailable("its secret does not fit a header: %d to %d printable bytes without spaces", minSecret, maxSecret)
	}
	if c.account != "" && !fitsHeader([]byte(c.account), 1) {
		return nil, unavailable("its account_id does not fit a header")
	}
	return c, nil
}

func fitsHeader(value []byte, least int) bool {
	return len(value) >= least && len(value) <= maxSecret &&
		bytes.IndexFunc(value, func(r rune) bool { return r < 0x21 || r > 0x7E }) < 0
}

// jwtExpiry gives the exp of a JWT in Unix seconds, unverified; 0 when the token
// says nothing.
func jwtExpiry(token string) int64 {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return 0
	}
	payload, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	if err != nil {
		return 0
	}
	tree, err := strictjson.Parse(payload, strictjson.Limits{})
	if err != nil {
		return 0
	}
	claims, _ := tree.(map[string]any)
	exp, ok := claims["exp"].(strictjson.Number)
	if !ok {
		return 0
	}
	seconds, ok := exp.Float64()
	switch {
	case !ok || seconds > 1<<52:
		return 0
	case seconds < 1: // before there was time: past in any case
		return 1
	}
	return int64(seconds)
}

// contentHint says what a credential file holds.
const contentHint = `it must hold {"OPENAI_API_KEY":"…"} or {"tokens":{"access_token":"…"}}`

func unavailable(format string, args ...any) error {
	return fault.New(fault.CredentialUnavailable, "read the "+credentialFile+": "+format, args...).WithHint(contentHint)
}

// errnoText is the system's word for an error, without the path.
func errnoText(err error) string {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return "unknown error"
}
