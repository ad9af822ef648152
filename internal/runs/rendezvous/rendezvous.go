package rendezvous

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
)

const (
	layout = "1"       // version of the entries in Redis
	kept   = time.Hour // validity of an attempt's entry after its last report
)

// Word is the report of one worker or server of an attempt.
type Word struct {
	Part  string // name of the worker or server, such as w0 or ps1; w0 is the first worker
	Ready bool   // the part can begin
	Over  bool   // the part's command has ended
}

// Heard is the answer to a report.
type Heard struct {
	All   bool // all parts are or were ready: the part may begin
	End   bool // the first worker's command has ended
	Alone bool // all other commands have ended
}

// Roll stores the reports of one install's attempts.
type Roll struct {
	client *redis.Client
	key    string
}

// NewRoll returns the Roll of an install on one Kafka; nil without a client.
func NewRoll(client *redis.Client, names tidemill.Names, kafka string) *Roll {
	if client == nil {
		return nil
	}
	return &Roll{client, names.Key("muster", layout, kafka)}
}

// script stores one report and returns the answer. Once all parts were ready, the answer stays
// "ready", so a part that ends early does not prevent a slow part from beginning.
const script = `
if ARGV[2] ~= '' then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
local ready, over = 0, 0
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  if all[i] ~= 'all' then
    ready = ready + 1
    if all[i+1] == 'over' and all[i] ~= 'w0' then over = over + 1 end
  end
end
local most = tonumber(ARGV[3])
if ready >= most then redis.call('HSET', KEYS[1], 'all', '1') end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
local met = redis.call('HEXISTS', KEYS[1], 'all')
local ended = redis.call('HGET', KEYS[1], 'w0') == 'over' and 1 or 0
return {met, ended, over >= most - 1 and 1 or 0}
`

// Say stores a report of one part of an attempt. many is the number of the attempt's parts.
func (r *Roll) Say(ctx context.Context, attempt string, many int, w Word) (Heard, error) {
	state := ""
	switch {
	case w.Over:
		state = "over"
	case w.Ready:
		state = "ready"
	}
	is, err := r.client.Eval(ctx, script, []string{strings.Join([]string{r.key, attempt}, ":")}, w.Part, state, many, kept.Milliseconds()).Int64Slice()
	if err == nil && len(is) != 3 {
		err = fmt.Errorf("it answered %d numbers", len(is))
	}
	if err != nil {
		return Heard{}, fmt.Errorf("gather the workers of attempt %s: %w", attempt, err)
	}
	return Heard{is[0] == 1, is[1] == 1, is[2] == 1}, nil
}
