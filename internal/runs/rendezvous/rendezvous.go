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
	layout = "1"       // of what is written
	kept   = time.Hour // behind the last who said something
)

// Word is what one of an attempt says.
type Word struct {
	Part  string // who: w0 or ps1, say; w0 is the first worker
	Ready bool   // it can begin
	Over  bool   // its command has ended
}

// Heard is what it hears.
type Heard struct {
	All   bool // all are ready, or were: it may begin
	End   bool // the first worker's command has ended
	Alone bool // all other commands have ended
}

// Roll is where the attempts of one install gather.
type Roll struct {
	client *redis.Client
	key    string
}

// NewRoll is that of an install beside one Kafka; nil without Redis.
func NewRoll(client *redis.Client, names tidemill.Names, kafka string) *Roll {
	if client == nil {
		return nil
	}
	return &Roll{client, names.Key("muster", layout, kafka)}
}

// script writes down what one says, and what it hears. That all were ready once
// stays so: who ends first does not hold up who begins last.
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

// Say says something for one of so many of an attempt.
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
