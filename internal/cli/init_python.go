package cli

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"tidemill.dev/python"
)

const (
	venvFolder       = ".venv"            // virtual environment, in the trainer's folder
	requirementsFile = "requirements.txt" // packages with their hashes
	requirementsIn   = "requirements.in"  // packages from which uv makes requirementsFile
)

// withPackage adds the wheel of the package tidemill to a trainer's folder, and to the lists of
// the packages that the trainer needs. The package is not on PyPI.
func withPackage(files []initialFile, folder string) ([]initialFile, error) {
	name, wheel, err := python.Wheel()
	if err != nil {
		return nil, err
	}
	for i := range files {
		switch dir, base := filepath.Split(files[i].name); {
		case filepath.Clean(dir) != folder:
		case base == requirementsFile:
			hash := ""
			if isHashed(files[i].data) {
				hash = fmt.Sprintf(" \\\n    --hash=sha256:%x", sha256.Sum256(wheel))
			}
			files[i].data = fmt.Appendf(files[i].data, "./%s%s\n", name, hash)
		case base == requirementsIn:
			files[i].data = fmt.Appendf(files[i].data, "./%s\n", name)
		}
	}
	return append(files, initialFile{filepath.Join(folder, name), wheel}), nil
}

// isHashed reports whether a list of packages has their hashes. Either all have one, or none.
func isHashed(list []byte) bool { return bytes.Contains(list, []byte("--hash=")) }

// hasHashes reports whether the packages of a template have hashes.
func hasHashes(files []initialFile) bool {
	return slices.ContainsFunc(files, func(f initialFile) bool { return filepath.Base(f.name) == requirementsFile && isHashed(f.data) })
}

// environment is the virtual environment of a trainer.
type environment struct {
	python string // program that makes it
	dir    string // the trainer's folder
	hashed bool   // whether the packages have hashes
	size   string // size of the packages, for the user
	out    io.Writer

	version string // version of the Python
}

// commands returns the commands that make the environment by hand.
func (e *environment) commands() string {
	return fmt.Sprintf("cd %s && %s -m venv %s && %s", folderWord(e.dir), e.python, venvFolder, e.installCommand())
}

// pipArgs returns pip's arguments. Only wheels are installed, so no compiler is needed.
func (e *environment) pipArgs() []string {
	args := []string{"-m", "pip", "install", "--only-binary", ":all:"}
	if e.hashed {
		args = append(args, "--require-hashes")
	}
	return append(args, "-r", requirementsFile)
}

func (e *environment) installCommand() string {
	return filepath.Join(venvFolder, "bin", "python") + " " + strings.Join(e.pipArgs(), " ")
}

// checkPython prints its version, and fails if it cannot make a virtual environment.
const checkPython = `import sys
print("%d.%d.%d" % sys.version_info[:3])
sys.exit(3) if sys.version_info < (3, 9) else None
import ensurepip, venv`

// check reports whether there is a Python that can make the environment.
func (e *environment) check(ctx context.Context) error {
	const other = "; or name another one by --python, or write only the files by --no-venv"
	program, err := exec.LookPath(e.python)
	if err != nil {
		return fmt.Errorf("there is no %s in PATH: install Python 3.9 or newer, on Debian by apt-get install python3-venv%s", e.python, other)
	}
	said, err := exec.CommandContext(ctx, program, "-c", checkPython).Output()
	e.version = strings.TrimSpace(string(said))
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &exit) && exit.ExitCode() == 3:
		return fmt.Errorf("%s is Python %s, and the template needs 3.9 or newer: install a newer one%s", e.python, e.version, other)
	case errors.As(err, &exit) && e.version != "":
		return fmt.Errorf("%s cannot make a virtual environment, because it lacks venv or ensurepip: install them, on Debian by apt-get install python3-venv%s", e.python, other)
	}
	return fmt.Errorf("%s does not run: %w%s", e.python, err, other)
}

// make makes the environment and installs the packages. The files are written already, so an error
// has the commands that continue.
func (e *environment) make(ctx context.Context) error {
	to := filepath.Join(e.dir, venvFolder)
	fmt.Fprintf(e.out, "\nmaking %s with Python %s; its packages need %s\n", to, e.version, e.size)
	if said, err := exec.CommandContext(ctx, e.python, "-m", "venv", to).CombinedOutput(); err != nil {
		return fmt.Errorf("%s -m venv %s: %w\n%s\nThe files are written. To continue:\n  %s", e.python, to, err, said, e.commands())
	}
	if err := os.WriteFile(filepath.Join(to, ".gitignore"), []byte("*\n"), 0o644); err != nil { // Python 3.13 writes the same file
		return err
	}
	if last, err := e.install(ctx); err != nil {
		return fmt.Errorf("the packages of the trainer were not installed: %w\n%s\nThe files are written. If pip reached no index, connect to one, or set PIP_INDEX_URL. To continue:\n  cd %s && %s",
			err, last, folderWord(e.dir), e.installCommand())
	}
	return nil
}

// install runs pip. It prints the name of each package that pip takes, and returns pip's last lines.
func (e *environment) install(ctx context.Context) (last string, err error) {
	python, err := filepath.Abs(filepath.Join(e.dir, venvFolder, "bin", "python"))
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, python, e.pipArgs()...)
	cmd.Dir = e.dir
	cmd.Env = append(os.Environ(), "PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_NO_INPUT=1")
	lines, to := io.Pipe()
	cmd.Stdout, cmd.Stderr = to, to
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() {
		ended <- cmd.Wait()
		to.Close()
	}()
	last = e.follow(lines)
	return last, <-ended
}

// lastLines is how many lines of pip an error shows.
const lastLines = 6

// follow prints what pip does, in short, and returns its last lines.
func (e *environment) follow(pip io.Reader) string {
	var last []string
	for lines := bufio.NewScanner(pip); lines.Scan(); {
		line := lines.Text()
		if last = append(last, line); len(last) > lastLines {
			last = last[1:]
		}
		first, rest, _ := strings.Cut(line, " ")
		switch name, _, _ := strings.Cut(rest, " "); first {
		case "Collecting", "Processing":
			fmt.Fprintf(e.out, "  %s\n", name)
		case "Installing":
			fmt.Fprintln(e.out, "  installing them")
		}
	}
	_, _ = io.Copy(io.Discard, pip) // after a line that is too long, pip would wait for its reader
	return strings.Join(last, "\n")
}
