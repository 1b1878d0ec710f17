package launch

import (
	"fmt"
	"io"
	"strings"

	"aead.dev/minisign"

	"drawbridge/shared/fault"
)

// maxSignature bounds the text of a signature, and of a key.
const maxSignature = 8 << 10

// parseMinisign reads key and signature, in the forms of the minisign command: the
// key as its file or its one line.
func parseMinisign(m Minisign) (key minisign.PublicKey, signature []byte, err error) {
	if len(m.PublicKey) > maxSignature || len(m.Signature) > maxSignature {
		return key, nil, fmt.Errorf("more than %d bytes", maxSignature)
	}
	if err := key.UnmarshalText([]byte(strings.TrimSpace(m.PublicKey))); err != nil {
		return key, nil, fmt.Errorf("the public key is not one of minisign")
	}
	var s minisign.Signature
	if err := s.UnmarshalText([]byte(m.Signature)); err != nil {
		return key, nil, fmt.Errorf("the signature is not one of minisign")
	}
	if s.KeyID != key.ID() {
		return key, nil, fmt.Errorf("the signature is by another key")
	}
	return key, []byte(m.Signature), nil
}

// checkMinisign refuses what can verify nothing.
func checkMinisign(m Minisign) error {
	if _, _, err := parseMinisign(m); err != nil {
		return fault.New(fault.IntegrityFailed, "read the harness's signature: %w", err)
	}
	return nil
}

// verifyMinisign checks content, and the trusted comment, against the signature,
// and gives the id of the key.
func verifyMinisign(m Minisign, content io.Reader) (string, error) {
	key, signature, err := parseMinisign(m)
	if err != nil {
		return "", fault.New(fault.IntegrityFailed, "verify the harness: %w", err)
	}
	reader := minisign.NewReader(content) // prehashed signatures, which the command makes; older ones fail
	if _, err := io.Copy(io.Discard, reader); err != nil {
		return "", refusedArtifact("%w", err)
	}
	if !reader.Verify(key, signature) {
		return "", fault.New(fault.IntegrityFailed, "verify the harness: the signature is not of this file").
			WithHint("fetch file and signature again from the place that was reviewed")
	}
	return fmt.Sprintf("%016X", key.ID()), nil
}
