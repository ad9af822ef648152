package ledger

import (
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// writeWithin is how long a batch may take to write. A busy laptop can take
// seconds, and who gives up earlier does the work again.
const writeWithin = 20 * time.Second

// patient options make a client that waits for a busy Redis, and that leaves
// trying again to us: what has been written need not be sent again.
func patient(options *redis.Options) *redis.Options {
	o := *options
	o.ReadTimeout, o.WriteTimeout = writeWithin, writeWithin
	o.MaxRetries = 1 // for a connection that was cut while idle
	o.PoolSize, o.MinIdleConns = mostLanes+1, 0
	o.DisableIdentity, o.PushNotificationProcessor = true, nil // the other client's own
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return &o
}
