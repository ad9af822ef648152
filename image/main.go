// Command image builds Tidemill's container image as a tar file, without a container engine: make
// image. README.md describes the contents and gives the reasons.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// go run -C image starts the program in its own folder. Its paths are relative to the
	// repository's root.
	err := os.Chdir("..")
	if err == nil {
		err = run(ctx, os.Args[1:], os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	var (
		flags  = flag.NewFlagSet("image", flag.ContinueOnError)
		name   = flags.String("name", "dev.local/tidemill:v1", "the image's whole name, with its tag")
		out    = flags.String("o", "bin/tidemill-image.tar", "the file to write")
		folder = flags.String("folder", "", "write the layers as folders below this one instead, for the Dockerfile")
		sbom   = flags.String("sbom", "", "write a list of the image's parts (CycloneDX) to this file instead")
		binary = flags.String("release", "", "write archives of tidemill for other systems, with sums and an SBOM, into this folder instead")
		plain  = flags.Bool("plain", false, "leave layers uncompressed: quicker, for an image that stays on this machine")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *sbom != "" {
		return writeBill(ctx, *sbom)
	}
	if *binary != "" {
		return release(ctx, *binary, stdout)
	}
	im, err := assemble(ctx, *name)
	if err != nil {
		return err
	}
	if *folder != "" {
		return unpackLayers(*folder, im.Layers)
	}
	im.Plain = *plain
	c, err := writeImage(*out, im)
	if err != nil {
		return err
	}
	return report(stdout, *out, c)
}
