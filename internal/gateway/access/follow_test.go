package access

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev/api"
)

// changeTimeout is the time within which a change must apply.
const changeTimeout = time.Second

func knows(g *Guard, token string) bool {
	_, err := g.Caller(context.Background(), bearerOf(token))
	return err == nil
}

func TestChangesApply(t *testing.T) {
	a, sumA := newToken()
	b, sumB := newToken()
	path := writeAccess(t, "tokens:\n"+yamlToken("a", sumA, "role: publish"))
	synctest.Test(t, func(t *testing.T) {
		var log guardLog
		g := open(t, path, Options{Logger: log.logger()})
		writeFile(t, path, "version: 1\ntokens:\n"+yamlToken("a", sumA, "role: read")+yamlToken("b", sumB, "role: publish"))
		time.Sleep(changeTimeout)
		synctest.Wait()
		if !knows(g, b) {
			t.Fatal("an added token is not known")
		}
		if c, err := g.Caller(t.Context(), bearerOf(a)); err != nil || c.Has(Publish) || !c.Has(Read) {
			t.Errorf("a changed role does not apply: %+v, %v", c, err)
		}
		writeFile(t, path, "version: 1\ntokens:\n"+yamlToken("b", sumB, "role: publish"))
		time.Sleep(changeTimeout)
		synctest.Wait()
		if _, err := g.Caller(t.Context(), bearerOf(a)); !errors.Is(err, ErrUnknown) {
			t.Errorf("a removed token: %v", err)
		}
		if !knows(g, b) {
			t.Error("the one beside it is gone too")
		}
		if n := strings.Count(log.String(), "access: file applied"); n != 2 {
			t.Errorf("two changes were logged %d times", n)
		}
		mustNotContain(t, "the log", log.String(), a)
		mustNotContain(t, "the log", log.String(), b)
	})
}

func TestInvalidChangesDoNotApply(t *testing.T) {
	token, sum := newToken()
	good := "version: 1\ntokens:\n" + yamlToken("crm", sum, "role: publish")
	for name, spoil := range map[string]func(path string) error{
		"no YAML":     func(path string) error { return os.WriteFile(path, []byte("tokens: ["), 0o600) },
		"empty":       func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"unknown key": func(path string) error { return os.WriteFile(path, []byte(good+"tokns: {}\n"), 0o600) },
		"gone":        os.Remove,
		"a folder": func(path string) error {
			return errors.Join(os.Remove(path), os.Mkdir(path, 0o700), os.WriteFile(path+"/x", nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := writeFile(t, filepath.Join(t.TempDir(), "access.yaml"), good)
			synctest.Test(t, func(t *testing.T) {
				var log guardLog
				g := open(t, path, Options{Logger: log.logger()})
				if c := g.Check(); c.Name != "access" || c.Status != api.OK || !strings.Contains(c.Detail, "tokens: 1") {
					t.Errorf("check %+v", c)
				}
				if err := spoil(path); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * changeTimeout)
				synctest.Wait()
				if !knows(g, token) {
					t.Error("the file before is not in force")
				}
				if c := g.Check(); c.Status != api.Degraded || !strings.Contains(c.Detail, "stays in force") {
					t.Errorf("check %+v", c)
				}
				if n := strings.Count(log.String(), "the file is invalid"); n != 1 {
					t.Errorf("it was logged %d times", n)
				}
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
				writeFile(t, path, good)
				time.Sleep(changeTimeout)
				synctest.Wait()
				if c := g.Check(); c.Status != api.OK || !knows(g, token) {
					t.Errorf("check %+v of the mended file", c)
				}
			})
		})
	}
}

// A half-written file is valid, but lacks half of its tokens.
func TestHalfAFileDoesNotApply(t *testing.T) {
	a, sumA := newToken()
	b, sumB := newToken()
	half := "version: 1\ntokens:\n" + yamlToken("a", sumA, "role: publish")
	whole := half + yamlToken("b", sumB, "role: publish")
	path := writeFile(t, filepath.Join(t.TempDir(), "access.yaml"), whole)
	synctest.Test(t, func(t *testing.T) {
		g := open(t, path, Options{})
		time.Sleep(lookEvery - time.Millisecond)
		writeFile(t, path, half)
		time.Sleep(2 * time.Millisecond) // the half file is seen once
		synctest.Wait()
		writeFile(t, path, whole)
		for range 5 {
			time.Sleep(lookEvery)
			synctest.Wait()
			if !knows(g, a) || !knows(g, b) {
				t.Fatal("half a file applied")
			}
		}
	})
}

// Kubernetes changes a mounted Secret by swapping a link.
func TestSwappedLinkApplies(t *testing.T) {
	token, sum := newToken()
	dir := t.TempDir()
	for name, text := range map[string]string{"one": "version: 1\n", "two": "version: 1\ntokens:\n" + yamlToken("crm", sum, "role: publish")} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, name, "access.yaml"), text)
	}
	link := func(to, name string) {
		if err := errors.Join(os.Symlink(to, filepath.Join(dir, "new")), os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, name))); err != nil {
			t.Fatal(err)
		}
	}
	link("one", "..data")
	link("..data/access.yaml", "access.yaml")
	synctest.Test(t, func(t *testing.T) {
		g := open(t, filepath.Join(dir, "access.yaml"), Options{})
		if knows(g, token) {
			t.Fatal("the token is known before it is there")
		}
		link("two", "..data")
		time.Sleep(changeTimeout)
		synctest.Wait()
		if !knows(g, token) {
			t.Error("the swapped file does not apply")
		}
	})
}

func TestNothingAppliesAfterClose(t *testing.T) {
	token, sum := newToken()
	path := writeAccess(t, "tokens:\n"+yamlToken("crm", sum, "role: publish"))
	synctest.Test(t, func(t *testing.T) {
		g, err := Open(t.Context(), path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		writeFile(t, path, "version: 1\n")
		time.Sleep(10 * changeTimeout)
		synctest.Wait()
		if !knows(g, token) {
			t.Error("a request that is still under way lost its caller")
		}
	})
}
