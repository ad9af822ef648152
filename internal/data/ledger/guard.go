package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// guardEvery is the time between checks that Redis may not evict keys.
const guardEvery = time.Minute

// guard checks that Redis may not evict keys, when a session begins and each minute.
func (l *Ledger) guard(ctx context.Context) error {
	if time.Since(l.guarded) < guardEvery {
		return nil
	}
	if err := l.checkEviction(ctx); err != nil {
		return err
	}
	l.guarded = time.Now()
	return nil
}

// checkEviction returns a StoppedError if Redis evicts any keys when its memory is full. A
// policy volatile-* evicts only keys that expire, and no key of the ledger expires.
func (l *Ledger) checkEviction(ctx context.Context) error {
	text, err := l.client.Info(ctx, "memory").Result()
	var refused redis.Error
	if errors.As(err, &refused) { // the laptop's Redis has no such section, and never evicts
		if strings.HasPrefix(err.Error(), "NOPERM") {
			l.policyLogged.Do(func() {
				l.log.Warn("ledger: this user may not ask Redis for its maxmemory-policy; make sure that it is noeviction", "reason", err)
			})
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("ask redis for its maxmemory-policy: %w", err)
	}
	memory := infoFields(text)
	if policy := memory["maxmemory_policy"]; strings.HasPrefix(policy, "allkeys-") && memory["maxmemory"] != "0" {
		return &StoppedError{fmt.Sprintf("Redis evicts keys when its memory of %s bytes is full, because its maxmemory-policy is %s: set maxmemory-policy to noeviction; %s",
			memory["maxmemory"], policy, runbook)}
	}
	return nil
}

// infoFields parses the lines name:value of an answer to INFO.
func infoFields(text string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			all[name] = value
		}
	}
	return all
}
