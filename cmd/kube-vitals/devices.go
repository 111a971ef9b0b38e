package main

import (
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/kube-vitals/kube-vitals/pkg/device"
)

func (o *options) addDeviceFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Devices.File, "device-config", "",
		"The YAML file with the exporters from which the usage of devices such as GPUs is read, and the names of their "+
			"series. See docs/devices.md. (default: no devices)")
}

// checkDeviceFile checks the content of --device-config.
func (o *options) checkDeviceFile(content []byte) error {
	_, err := device.Parse(content, filepath.Dir(o.Devices.File))
	return err
}
