package store

import (
	"context"
	"time"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
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

var (
	offersExpired = define(`
DELETE FROM offers
WHERE owner_session = :owner AND expires_at <= :now`)

	offersOver = define(`
DELETE FROM offers
WHERE (owner_session, kind, target_type, target_id) IN (
  SELECT owner_session, kind, target_type, target_id
  FROM offers
  WHERE owner_session = :owner AND NOT (kind = :kind AND target_type = :target_type AND target_id = :target)
  ORDER BY minted_at DESC, kind, target_type, target_id
  LIMIT -1 OFFSET :keep)`)

	// What was shown once and is different now stays unusable until it is gone.
	offerPut = define(`
INSERT INTO offers(owner_session, kind, target_type, target_id, payload_json, fingerprint, minted_at, expires_at)
VALUES (:owner, :kind, :target_type, :target, :payload, :fingerprint, :now, :expires)
ON CONFLICT(owner_session, kind, target_type, target_id) DO UPDATE
SET invalidated = max(invalidated, fingerprint IS NOT excluded.fingerprint OR payload_json <> excluded.payload_json),
  expires_at = CASE WHEN invalidated OR fingerprint IS NOT excluded.fingerprint OR payload_json <> excluded.payload_json
    THEN expires_at ELSE excluded.expires_at END`)

	offerTake = define(`
DELETE FROM offers
WHERE owner_session = :owner AND kind = :kind AND target_type = :target_type AND target_id = :target
RETURNING payload_json, invalidated, expires_at`)

	offersForget = define(`
DELETE FROM offers
WHERE owner_session = :owner`)
)

// MintOffer records what a controller session was shown. Seen again unchanged it
// lives on; seen again changed it stays invalid until it is consumed or expires.
func (s *Store) MintOffer(ctx context.Context, o NewOffer) error {
	return s.transact(ctx, func(t *tx) error {
		t.silent = true
		if _, err := t.exec(offersExpired, "owner", o.Key.OwnerSession, "now", t.now); err != nil {
			return err
		}
		if _, err := t.exec(offersOver, append(o.Key.pairs(), "keep", int64(OfferLimit-1))...); err != nil {
			return err
		}
		_, err := t.exec(offerPut, append(o.Key.pairs(), "payload", o.Payload, "fingerprint", orNull(o.Fingerprint),
			"now", t.now, "expires", t.now+o.Life.Milliseconds())...)
		return err
	})
}

// ConsumeOffer takes an offer away and gives its payload. offer_missing also for
// one that was invalidated; offer_expired past its life. Whatever comes back, the
// offer is gone.
func (s *Store) ConsumeOffer(ctx context.Context, k OfferKey) (payload []byte, err error) {
	var (
		taken offerRow
		ok    bool
		now   int64
	)
	err = s.transact(ctx, func(t *tx) error {
		t.silent, now = true, t.now
		taken, ok, err = first(t, scanOffer, offerTake, k.pairs()...)
		return err
	})
	if err == nil {
		crashpoint.At("offer_consumed")
	}
	switch {
	case err != nil:
		return nil, err
	case ok && taken.expires <= now:
		return nil, fault.New(fault.OfferExpired, "use the %s offer: it is past its life", k.Kind)
	case !ok || taken.invalidated:
		return nil, fault.New(fault.OfferMissing, "use the %s offer: there is none", k.Kind)
	}
	return taken.payload, nil
}

// DeleteOffers forgets all offers of a controller session.
func (s *Store) DeleteOffers(ctx context.Context, ownerSession string) (deleted int, err error) {
	err = s.transact(ctx, func(t *tx) error {
		t.silent = true
		n, err := t.exec(offersForget, "owner", ownerSession)
		deleted = int(n)
		return err
	})
	return deleted, err
}

type offerRow struct {
	payload     []byte
	invalidated bool
	expires     int64
}

func scanOffer(r scanner) (o offerRow, err error) {
	err = r.Scan(&o.payload, &o.invalidated, &o.expires)
	return o, err
}

func (k OfferKey) pairs() []any {
	return []any{"owner", k.OwnerSession, "kind", k.Kind, "target_type", k.TargetType, "target", k.TargetID}
}
