package realservers

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// The official clients of the Open Inference Protocol: Triton's and KServe's for Python, and one for
// Java that protoc makes from the protocol's description in Triton's package.
const (
	tritonLibrary = "tritonclient[grpc,http]==2.73.0"
	kserveLibrary = "kserve==0.21.0"
	grpcJava      = "1.75.0"
	protobufJava  = "3.25.8"
	ecj           = "3.40.0" // a compiler that needs no JDK
)

func inferenceLibraries() []string { return []string{tritonLibrary, kserveLibrary} }

// PythonInference runs python3 with Triton's and KServe's clients.
func PythonInference(ctx context.Context, args ...string) (*exec.Cmd, error) {
	return pythonWith(ctx, args, inferenceLibraries()...)
}

// inferenceSums are the SHA-256 of the jars and programs, as sha256sum prints them.
//
//go:embed inference.sha256
var inferenceSums string // read only

func inferencePom() string {
	one := func(group, artifact, version, rest string) string {
		return "<dependency><groupId>" + group + "</groupId><artifactId>" + artifact + "</artifactId><version>" + version + "</version>" + rest + "</dependency>\n"
	}
	all := one("org.eclipse.jdt", "ecj", ecj, "")
	for _, artifact := range []string{"grpc-netty-shaded", "grpc-protobuf", "grpc-stub"} {
		all += one("io.grpc", artifact, grpcJava, "")
	}
	for _, machine := range []string{"linux-x86_64", "linux-aarch_64"} {
		program := "<classifier>" + machine + "</classifier><type>exe</type>"
		all += one("com.google.protobuf", "protoc", protobufJava, program) + one("io.grpc", "protoc-gen-grpc-java", grpcJava, program)
	}
	return `<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>dev.tidemill</groupId><artifactId>inference-client</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>
` + all + "</dependencies></project>\n"
}

// describe writes the protocol's description as protoc reads it.
const describe = `import sys
from google.protobuf import descriptor_pb2
from tritonclient.grpc import model_config_pb2, service_pb2
all = descriptor_pb2.FileDescriptorSet()
for one in (model_config_pb2, service_pb2):
    one.DESCRIPTOR.CopyToProto(all.file.add())
open(sys.argv[1], "wb").write(all.SerializeToString())
`

// javaInference returns a folder with jars, protoc, and the classes of a client in Java.
func javaInference(ctx context.Context) (string, error) {
	return cachedFolder("java-inference-"+grpcJava, func(dir string) error {
		if err := download(ctx, dir, inferencePom(), inferenceSums); err != nil {
			return err
		}
		description := filepath.Join(dir, "description.pb")
		python, err := PythonInference(ctx, "-c", describe, description)
		if err != nil {
			return err
		}
		generated := filepath.Join(dir, "generated")
		if err := os.Mkdir(generated, 0o755); err != nil {
			return fmt.Errorf("make a folder for Java's client: %w", err)
		}
		plugin := programIn(dir, "protoc-gen-grpc-java", grpcJava)
		for _, program := range []string{plugin, programIn(dir, "protoc", protobufJava)} {
			if err := os.Chmod(program, 0o755); err != nil {
				return fmt.Errorf("make a program executable: %w", err)
			}
		}
		return runAll(python,
			protocIn(ctx, dir, "--descriptor_set_in="+description, "--plugin=protoc-gen-grpc-java="+plugin,
				"--java_out="+generated, "--grpc-java_out="+generated, "grpc_service.proto", "model_config.proto"),
			compileJava(ctx, dir, filepath.Join(dir, "classes"), generated))
	})
}

// programIn returns the path of a program for this machine.
func programIn(dir, name, version string) string {
	machine := "linux-x86_64"
	if runtime.GOARCH == "arm64" {
		machine = "linux-aarch_64"
	}
	return filepath.Join(dir, name+"-"+version+"-"+machine+".exe")
}

func protocIn(ctx context.Context, dir string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, programIn(dir, "protoc", protobufJava), args...)
}

// classPath returns the jars and classes of the client, and more folders.
func classPath(dir string, more ...string) string {
	jars, _ := filepath.Glob(filepath.Join(dir, "*.jar")) // the pattern is valid
	return strings.Join(slices.Concat(jars, []string{filepath.Join(dir, "classes")}, more), ":")
}

// compileJava compiles a source or a folder of sources.
func compileJava(ctx context.Context, dir, to, source string) *exec.Cmd {
	return exec.CommandContext(ctx, "java", "-XX:TieredStopAtLevel=1", "-jar", filepath.Join(dir, "ecj-"+ecj+".jar"), "-17", "-nowarn",
		"-cp", classPath(dir), "-d", to, source)
}

func runAll(all ...*exec.Cmd) error {
	for _, cmd := range all {
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w; %s", filepath.Base(cmd.Path), err, out)
		}
	}
	return nil
}

// JavaInference compiles a class that uses Java's client of the protocol, and returns the command that runs
// the class. The folder to is for its own classes.
func JavaInference(ctx context.Context, to, source string, args ...string) (*exec.Cmd, error) {
	dir, err := javaInference(ctx)
	if err != nil {
		return nil, err
	}
	if err := runAll(compileJava(ctx, dir, to, source)); err != nil {
		return nil, err
	}
	class := strings.TrimSuffix(filepath.Base(source), ".java")
	return exec.CommandContext(ctx, "java", append([]string{"-XX:TieredStopAtLevel=1", "-cp", classPath(dir, to), class}, args...)...), nil
}

// Protoc compiles a description of messages, and returns the file with the result.
func Protoc(ctx context.Context, to, source string) (string, error) {
	dir, err := javaInference(ctx)
	if err != nil {
		return "", err
	}
	set := filepath.Join(to, filepath.Base(source)+".pb")
	return set, runAll(protocIn(ctx, dir, "--proto_path="+filepath.Dir(source), "--descriptor_set_out="+set, source))
}
