package store

import (
	"time"
)

// OfferLimit is the most live offers of one controller session.
const OfferLimit = 512

// OfferKey names one offer.
type OfferKey struct {
	OwnerSession string
	Kind         string // approval, handoff, reconcile_binding, interaction, resume_snapshot
	TargetType   string // turn, terminal, watch
	TargetID     string
}

// NewOffer lets one later call act on exactly what was shown.
type NewOffer struct {
	Key         OfferKey
	Payload     []byte // canonical JSON
	Fingerprint string
	Life        time.Duration
}
