package status

import (
	"errors"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/api"
)

func TestTrialsOfAllScorersAreRead(t *testing.T) {
	server := miniredis.RunT(t)
	names, err := tidemill.NewNames("prod")
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2, DisableIdentity: true})
	t.Cleanup(func() { _ = client.Close() })
	b := NewTrials(client, names, "kafka-1")
	for scorer, all := range map[string][]api.Trial{"a": {{Model: "m/2", Version: 3}}, "b": {{Model: "m/1", Version: 7}, {Model: "m/3", Version: 1}}, "c": {}} {
		if err := b.write(t.Context(), scorer, all); err != nil {
			t.Fatal(err)
		}
	}
	all, err := b.Read(t.Context())
	if err != nil || len(all) != 3 || all[0].Model != "m/1" || all[1].Version != 3 || all[2].Model != "m/3" {
		t.Errorf("%+v, %v", all, err)
	}
	var none *Trials
	if _, err := none.Read(t.Context()); !errors.Is(err, ErrNoRedis) {
		t.Errorf("without Redis: %v", err)
	}
}
