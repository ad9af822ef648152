package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// age makes a file old enough for its stamp to be trusted.
func age(t *testing.T, path string) {
	t.Helper()
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
}

func openSecret(t *testing.T, path string) *SecretFile {
	t.Helper()
	f, err := OpenSecret(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func wantSecret(t *testing.T, f *SecretFile, want string) {
	t.Helper()
	if s, err := f.Get(); err != nil || s.Reveal() != want {
		t.Errorf("got %q, %v, want %q", s.Reveal(), err, want)
	}
}

func TestSecretFileFollowsChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "password")
	write(t, path, "one\r\n")
	f := openSecret(t, path)
	wantSecret(t, f, "one")

	write(t, path, "two") // written at once and of the same size, so its time may be the same
	wantSecret(t, f, "two")

	age(t, path)
	wantSecret(t, f, "two")
	write(t, path, "six")
	wantSecret(t, f, "six")

	age(t, path)
	wantSecret(t, f, "six")
	write(t, path+".new", "ten\n\n")
	age(t, path+".new")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	wantSecret(t, f, "ten")
}

// Kubernetes mounts password → ..data/password and swaps the link ..data.
func TestSecretFileFollowsKubernetesSwap(t *testing.T) {
	dir := t.TempDir()
	for _, v := range []string{"v1", "v2"} {
		if err := os.Mkdir(filepath.Join(dir, v), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, v, "password"), "of "+v)
		age(t, filepath.Join(dir, v, "password"))
	}
	link(t, "v1", filepath.Join(dir, "..data"))
	path := filepath.Join(dir, "password")
	link(t, "..data/password", path)
	f := openSecret(t, path)
	wantSecret(t, f, "of v1")

	link(t, "v2", filepath.Join(dir, "..data_tmp"))
	if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "v1")); err != nil {
		t.Fatal(err)
	}
	wantSecret(t, f, "of v2")
}

func link(t *testing.T, to, at string) {
	t.Helper()
	if err := os.Symlink(to, at); err != nil {
		t.Fatal(err)
	}
}

func TestSecretFileKeepsTheOldOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "password")
	write(t, path, hidden)
	age(t, path)
	f := openSecret(t, path)
	for name, breakIt := range map[string]func(){
		"gone":  func() { os.Remove(path) },
		"empty": func() { write(t, path, "\n") },
	} {
		breakIt()
		s, err := f.Get()
		if err == nil || s.Reveal() != hidden || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %q, %v", name, s.Reveal(), err)
		}
		leaks(t, name, err.Error())
		write(t, path, hidden)
		wantSecret(t, f, hidden)
	}
}

func TestOpenSecretRefuses(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "empty"), "")
	write(t, filepath.Join(dir, "newline"), "\r\n\n")
	write(t, filepath.Join(dir, "large"), strings.Repeat("x", maxSecret+1))
	for name, want := range map[string]string{
		"empty": "is empty", "newline": "is empty", "large": "larger than", "none": "no such file", ".": "is not a file",
	} {
		path := filepath.Join(dir, name)
		_, err := OpenSecret(path)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

func TestSecretFileConcurrently(t *testing.T) {
	path := filepath.Join(t.TempDir(), "password")
	write(t, path, "a")
	f := openSecret(t, path)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				if s, _ := f.Get(); s.IsZero() {
					t.Error("no secret")
				}
			}
		})
	}
	for range 100 {
		write(t, path, "b")
	}
	wg.Wait()
	wantSecret(t, f, "b")
}

func TestOwnSecret(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "own")
	made := 0
	fresh := func() []byte { made++; return []byte(hidden) }
	for range 2 {
		if got, err := OwnSecret(path, fresh); err != nil || string(got) != hidden || made != 1 {
			t.Errorf("%q, %v, made %d times", got, err, made)
		}
	}
	for name, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): os.ModeDir | 0o700} {
		if info, err := os.Stat(name); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("the folder has %v, %v", entries, err)
	}
	for _, wide := range []os.FileMode{0o604, 0o640, 0o620, 0o666} {
		if err := os.Chmod(path, wide); err != nil {
			t.Fatal(err)
		}
		_, err := OwnSecret(path, fresh)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%04o of %s", wide, path)) || !strings.Contains(err.Error(), "chmod 600") || strings.Contains(err.Error(), hidden) {
			t.Errorf("with %v: %v", wide, err)
		}
	}
	if _, err := OwnSecret(t.TempDir(), fresh); err == nil || !strings.Contains(err.Error(), "is not a file") {
		t.Error(err)
	}
}

// A secret is ours only if no other user can have written it. Another user could prepare the data folder of the
// next start, in a folder that is for all users.
func TestSecretsOfOthers(t *testing.T) {
	dir, uid := t.TempDir(), os.Geteuid()
	path, link := filepath.Join(dir, "own"), filepath.Join(dir, "link")
	write(t, path, hidden)
	if err := errors.Join(os.Chmod(path, 0o600), os.Symlink(path, link)); err != nil {
		t.Fatal(err)
	}
	if got, err := readOwn(path, uid); err != nil || string(got) != hidden || checkFolder(dir, uid) != nil {
		t.Errorf("our own: %q, %v, %v", got, err, checkFolder(dir, uid))
	}
	if _, err := readOwn(link, uid); err == nil || !strings.Contains(err.Error(), "a link") {
		t.Errorf("a link: %v", err)
	}
	for _, open := range []os.FileMode{0o720, 0o702, 0o777 | os.ModeSticky} {
		if err := os.Chmod(dir, open); err != nil {
			t.Fatal(err)
		}
		if err := CheckFolder(dir); err == nil || !strings.Contains(err.Error(), "chmod go-w "+dir) {
			t.Errorf("a folder with %v: %v", open, err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil || CheckFolder(dir) != nil {
		t.Errorf("a folder that others only read: %v, %v", err, CheckFolder(dir))
	}
	reader := uid + 1 // to whom our files are those of another user
	if uid == 0 {     // files of root are for every user, so root gives them away
		reader = uid
		if err := errors.Join(os.Chown(path, 1, -1), os.Chown(dir, 1, -1)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := readOwn(path, reader); err == nil || !strings.Contains(err.Error(), "another user") || strings.Contains(err.Error(), hidden) {
		t.Errorf("a file of another user: %v", err)
	}
	if err := checkFolder(dir, reader); err == nil || !strings.Contains(err.Error(), "another user") {
		t.Errorf("a folder of another user: %v", err)
	}
}
