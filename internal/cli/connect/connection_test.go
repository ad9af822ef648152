package connect

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWhereTheTokenComesFrom(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	flag, env := filepath.Join(dir, "flag"), filepath.Join(dir, "env")
	for file, text := range map[string]string{flag: "of the flag\n", env: "of the variable's file\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		flag string
		env  map[string]string
		want string
	}{
		{"", nil, ""},
		{flag, map[string]string{EnvToken: "of the variable", envTokenFile: env}, "of the flag"},
		{"", map[string]string{EnvToken: " of the variable ", envTokenFile: env}, "of the variable"},
		{"", map[string]string{envTokenFile: env}, "of the variable's file"},
	} {
		r := Reach{tokenFile: c.flag}
		token, err := r.token(func(name string) string { return c.env[name] })
		if err != nil || (token == nil) != (c.want == "") {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		if token == nil {
			continue
		}
		if got, err := token(); got.Reveal() != c.want || err != nil {
			t.Errorf("%+v: %q, %v", c, got.Reveal(), err)
		}
	}
}
