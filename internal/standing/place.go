package standing

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	layout = "1" // of what is written
	every  = 2 * time.Second
	lives  = 10 * time.Second // what somebody wrote who writes no more
)

// place is where some write in Redis, each a part.
type place struct {
	client *redis.Client
	index  string // the key of the set of those who write
	what   string // of what they tell how it stands
}

func (p *place) publish(ctx context.Context, who string, now func() any) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		_ = p.write(ctx, who, now()) // it is written anew in a moment
		select {
		case <-t.C:
		case <-ctx.Done():
			gone, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = p.remove(gone, []string{who}) // or it fades by itself
			return
		}
	}
}

func (p *place) write(ctx context.Context, who string, now any) error {
	text, err := json.Marshal(now)
	if err != nil {
		return fmt.Errorf("write how %s stand: %w", p.what, err)
	}
	_, err = p.client.TxPipelined(ctx, func(r redis.Pipeliner) error {
		r.Set(ctx, p.part(who), text, lives)
		r.SAdd(ctx, p.index, who)
		r.Expire(ctx, p.index, lives)
		return nil
	})
	if err != nil {
		return fmt.Errorf("write how %s stand: %w", p.what, err)
	}
	return nil
}

func (p *place) part(who string) string { return p.index + ":" + who }

func (p *place) remove(ctx context.Context, all []string) error {
	_, err := p.client.TxPipelined(ctx, func(r redis.Pipeliner) error {
		for _, who := range all {
			r.SRem(ctx, p.index, who)
			r.Del(ctx, p.part(who))
		}
		return nil
	})
	return err
}

// read has each part taken. What has faded, or cannot be read, is taken from the
// index.
func (p *place) read(ctx context.Context, take func(text []byte) error) error {
	gone, err := p.parts(ctx, take)
	if err == nil && len(gone) > 0 {
		err = p.remove(ctx, gone)
	}
	if err != nil {
		return fmt.Errorf("read how %s stand: %w", p.what, err)
	}
	return nil
}

func (p *place) parts(ctx context.Context, take func(text []byte) error) (gone []string, err error) {
	all, err := p.client.SMembers(ctx, p.index).Result()
	if err != nil || len(all) == 0 {
		return nil, err
	}
	keys := make([]string, len(all))
	for i, who := range all {
		keys[i] = p.part(who)
	}
	texts, err := p.client.MGet(ctx, keys...).Result()
	if err != nil {
		return nil, err
	}
	for i, text := range texts {
		if written, there := text.(string); !there || take([]byte(written)) != nil {
			gone = append(gone, all[i])
		}
	}
	return gone, nil
}
