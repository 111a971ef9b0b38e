package main

import (
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/kube-vitals/kube-vitals/pkg/device"
)

func (o *options) addDeviceFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.deviceFile, "device-config", "",
		"The YAML file with the exporters from which the usage of devices such as GPUs is read, and the names of their "+
			"series. See docs/devices.md. (default: no devices)")
}

// deviceConfig returns the configuration of devices, or nil without one.
func (o *options) deviceConfig() *device.Config {
	if o.deviceFile == "" {
		return nil
	}
	return &device.Config{File: o.deviceFile}
}

// checkDeviceFile checks the content of --device-config.
func (o *options) checkDeviceFile(content []byte) error {
	_, err := device.Parse(content, filepath.Dir(o.deviceFile))
	return err
}
