package platform

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// redisOptions leave out what go-redis asks a server for on every new
// connection and only some servers know.
func redisOptions(addresses string) *redis.Options {
	first, _, _ := strings.Cut(addresses, ",")
	return &redis.Options{
		Addr:                     first,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// silence keeps go-redis from writing to standard error, past every logger: what
// it says there it also returns as errors.
type silence struct{}

// Printf says nothing.
func (silence) Printf(context.Context, string, ...any) {}
