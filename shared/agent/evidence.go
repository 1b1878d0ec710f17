package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"drawbridge/shared/strictjson"
)

// ErrEvidence says that stored evidence does not recompute: it is treated as if
// it were not there.
var ErrEvidence = errors.New("acceptance evidence does not recompute")

// CanonicalJSON renders a value of this package in canonical form.
func CanonicalJSON(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	tree, err := strictjson.Parse(b, strictjson.Limits{MaxBytes: 64 << 20})
	if err != nil {
		return nil, err
	}
	return strictjson.Canonical(tree)
}

// FingerprintJSON is the SHA-256 of canonical JSON, in hex.
func FingerprintJSON(canonical []byte) string {
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:])
}

// Fingerprint names an anchor.
func (a Anchor) Fingerprint() (string, error) {
	b, err := CanonicalJSON(a)
	if err != nil {
		return "", err
	}
	return FingerprintJSON(b), nil
}

// Seal sets EvidenceFingerprint from all other members.
func (a *Acceptance) Seal() error {
	fp, err := a.recompute()
	a.EvidenceFingerprint = fp
	return err
}

func (a Acceptance) recompute() (string, error) {
	a.EvidenceFingerprint = ""
	b, err := CanonicalJSON(a)
	if err != nil {
		return "", err
	}
	return FingerprintJSON(b), nil
}

// ParseAcceptance reads stored evidence and recomputes its fingerprint;
// ErrEvidence when it was changed.
func ParseAcceptance(b []byte) (Acceptance, error) {
	var a Acceptance
	if err := json.Unmarshal(b, &a); err != nil {
		return Acceptance{}, fmt.Errorf("%w: %v", ErrEvidence, err)
	}
	fp, err := a.recompute()
	if err != nil || fp != a.EvidenceFingerprint || fp == "" {
		return Acceptance{}, ErrEvidence
	}
	return a, nil
}
