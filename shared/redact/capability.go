package redact

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
)

// CapabilityBytes is the entropy of a capability; it is written as lower hex, so
// that it fits headers, environments and file names alike.
const CapabilityBytes = 32

// NewCapability makes a random bearer secret and the hash by which it is known
// wherever it is kept.
func NewCapability() (Secret, [sha256.Size]byte) {
	raw := make([]byte, CapabilityBytes)
	rand.Read(raw) // never fails: the program ends when the system has no randomness
	s := NewSecret(hex.EncodeToString(raw))
	return s, sha256.Sum256([]byte(s.value))
}
