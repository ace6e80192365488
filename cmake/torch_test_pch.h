// Precompiled for every test that sees LibTorch: GoogleTest and what the header of every operator includes.
#pragma once
#include <ATen/Context.h>
#include <ATen/DeviceGuard.h>
#include <ATen/TensorUtils.h>
#include <ATen/TracerMode.h>
#include <ATen/core/Reduction.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "torch_pch.h"
