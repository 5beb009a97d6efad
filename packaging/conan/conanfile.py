"""Conan 2 recipe of attn, from this checkout: conan create packaging/conan"""
import os

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.files import copy, load


class AttnConan(ConanFile):
    name = "attn"
    description = "Attention on CPUs: header-only C++20"
    license = "Apache-2.0"
    topics = ("attention", "transformer", "tensor", "simd", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    # system_dependencies: Eigen, nlohmann/json and utf8proc from the system instead of from Conan.
    options = {"system_dependencies": [True, False]}
    default_options = {"system_dependencies": False}
    no_copy_source = True

    @property
    def _checkout(self):
        return os.path.join(self.recipe_folder, os.pardir, os.pardir)

    def set_version(self):
        for line in load(self, os.path.join(self._checkout, "CMakeLists.txt")).splitlines():
            words = line.split()
            if words[:1] == ["VERSION"]:
                self.version = words[1]
                return

    def export_sources(self):
        for pattern in ("LICENSE", "include/*"):
            copy(self, pattern, self._checkout, self.export_sources_folder)

    def requirements(self):
        if not self.options.system_dependencies:
            self.requires("eigen/3.4.0", transitive_headers=True)
            self.requires("nlohmann_json/3.11.3", transitive_headers=True)
            self.requires("utf8proc/2.9.0", transitive_headers=True, transitive_libs=True)

    def validate(self):
        check_min_cppstd(self, 20)

    def package_id(self):
        self.info.clear()

    def package(self):
        for pattern in ("*.hpp", "*.inc"):
            copy(self, f"include/{pattern}", self.source_folder, self.package_folder)
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        system = bool(self.options.system_dependencies)
        for name, needs in (("attn", ["eigen::eigen"]),
                            ("io", ["attn", "nlohmann_json::nlohmann_json"]),
                            ("text", ["io", "utf8proc::utf8proc"])):
            component = self.cpp_info.components[name]
            component.set_property("cmake_target_name", f"attn::{name}")
            component.bindirs = component.libdirs = []
            component.requires = [one for one in needs if not (system and "::" in one)]
        if system:
            self.cpp_info.components["attn"].includedirs.append("/usr/include/eigen3")
            self.cpp_info.components["text"].system_libs = ["utf8proc"]
