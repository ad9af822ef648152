// Command gpus is a device plugin for cards that do not exist. It reports them to the node's
// kubelet, which counts them like real ones.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	plugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// resource is the name that pods request.
const resource = "nvidia.com/gpu"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	count := flag.Int("count", 2, "how many cards the node has")
	folder := flag.String("folder", plugin.DevicePluginPath, "where the kubelet listens")
	flag.Parse()
	if err := run(ctx, *folder, *count); err != nil {
		fmt.Fprintln(os.Stderr, "gpus:", err)
		os.Exit(1)
	}
}

// run serves the kubelet and registers its address there.
func run(ctx context.Context, folder string, count int) error {
	const socket = "tidemill-gpus.sock"
	path := filepath.Join(folder, socket)
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove an old socket: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("listen for the kubelet: %w", err)
	}
	server := grpc.NewServer()
	plugin.RegisterDevicePluginServer(server, &cards{count: count})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer server.Stop()
	if err := register(ctx, filepath.Join(folder, "kubelet.sock"), socket); err != nil {
		return err
	}
	select {
	case err := <-served:
		return fmt.Errorf("serve the kubelet: %w", err)
	case <-ctx.Done():
		return nil
	}
}

func register(ctx context.Context, kubelet, socket string) error {
	conn, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("reach the kubelet: %w", err)
	}
	defer conn.Close()
	_, err = plugin.NewRegistrationClient(conn).Register(ctx,
		&plugin.RegisterRequest{Version: plugin.Version, Endpoint: socket, ResourceName: resource}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("register with the kubelet: %w", err)
	}
	return nil
}

// cards answers the kubelet's requests.
type cards struct {
	plugin.UnimplementedDevicePluginServer
	count int
}

// GetDevicePluginOptions returns no options.
func (c *cards) GetDevicePluginOptions(context.Context, *plugin.Empty) (*plugin.DevicePluginOptions, error) {
	return &plugin.DevicePluginOptions{}, nil
}

// ListAndWatch reports all cards as healthy once, because they never break.
func (c *cards) ListAndWatch(_ *plugin.Empty, stream grpc.ServerStreamingServer[plugin.ListAndWatchResponse]) error {
	if err := stream.Send(&plugin.ListAndWatchResponse{Devices: c.devices()}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (c *cards) devices() []*plugin.Device {
	devices := make([]*plugin.Device, c.count)
	for i := range devices {
		devices[i] = &plugin.Device{ID: "GPU-fake-" + strconv.Itoa(i), Health: plugin.Healthy}
	}
	return devices
}

// Allocate passes the cards' names to the container as NVIDIA's own plugin does.
func (c *cards) Allocate(_ context.Context, r *plugin.AllocateRequest) (*plugin.AllocateResponse, error) {
	answer := &plugin.AllocateResponse{}
	for _, container := range r.ContainerRequests {
		answer.ContainerResponses = append(answer.ContainerResponses, &plugin.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ",")},
		})
	}
	return answer, nil
}
