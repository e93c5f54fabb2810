package main

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	backoffBase = 100 * time.Millisecond
	backoffCap  = 2 * time.Second
)

// backoff says how long to wait before the next try: full jitter, so that clients that lost one server do not come back
// together.
type backoff struct{ failures int }

// next gives what the server asked for, and 0 to a ceiling that doubles up to a cap.
func (b *backoff) next(atLeast time.Duration) time.Duration {
	ceiling := min(backoffCap, backoffBase<<min(b.failures, 10))
	b.failures++
	return atLeast + rand.N(ceiling)
}

func (b *backoff) reset() { b.failures = 0 }

func sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
