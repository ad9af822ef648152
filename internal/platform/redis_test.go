package platform

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// The password is read again for a new connection, so that a changed password needs no restart.
func TestRedisIsGivenThePasswordThatIsInForce(t *testing.T) {
	server := miniredis.RunT(t)
	server.RequireUserAuth("tidemill", "first")
	file := filepath.Join(t.TempDir(), "password")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	o, err := redisOptions(server.Addr(), RedisSecurity{User: "tidemill", PasswordFile: file})
	if err != nil {
		t.Fatal(err)
	}
	ping := func() error {
		c := redis.NewClient(o)
		defer c.Close()
		return c.Ping(t.Context()).Err()
	}
	if err := ping(); err != nil {
		t.Fatal(err)
	}
	server.RequireUserAuth("tidemill", "second")
	if err := ping(); err == nil {
		t.Error("the old password still opens")
	}
	write("second")
	if err := ping(); err != nil {
		t.Error(err)
	}
}

func TestRedisSecurityThatCannotBe(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, s := range map[string]RedisSecurity{
		"give --redis-password-file": {User: "tidemill"},
		"give both":                  {CAFile: empty},
		"read its password":          {PasswordFile: none},
		"read whom to trust":         {TLS: true, CAFile: none},
		"holds no certificate":       {TLS: true, CAFile: empty},
	} {
		if _, err := redisOptions("redis.example:6379", s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", s, err, want)
		}
	}
}
