#pragma once
#include <memory>
#include <string>
#include "impls/attention.hpp"
namespace attn { struct DevicePoint { virtual ~DevicePoint()=default; virtual void upload()=0; virtual double timed_run()=0; virtual void download()=0; };
std::unique_ptr<DevicePoint> make_device_point(const Backend&, const Problem&, const Io&, void*);
std::string device_name(); }
